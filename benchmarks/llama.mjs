// One line of JSON a turn: {"tokens": [...], "new": N} in, processor seconds of this process for N tokens after them out.
// node llama.mjs FILE.gguf, where node-llama-cpp is installed in the working directory; one thread.
import {createRequire} from "node:module";
import {createInterface} from "node:readline";
import {pathToFileURL} from "node:url";

const here = createRequire(pathToFileURL(process.cwd() + "/"));
const {getLlama, LlamaLogLevel} = await import(pathToFileURL(here.resolve("node-llama-cpp")));
const llama = await getLlama({gpu: false, build: "never", maxThreads: 1, logLevel: LlamaLogLevel.error});
const model = await llama.loadModel({modelPath: process.argv[2]});
const context = await model.createContext({contextSize: 256, threads: 1, batchSize: 128});
const sequence = context.getSequence();
const spent = () => {
  const {user, system} = process.cpuUsage();
  return (user + system) / 1e6;
};
for await (const line of createInterface({input: process.stdin})) {
  const turn = JSON.parse(line);
  await sequence.clearHistory();
  const began = spent();
  let count = 0;
  for await (const _ of sequence.evaluate(turn.tokens, {temperature: 1, yieldEogToken: true})) {
    count += 1;
    if (count === turn.new) break;
  }
  console.log(spent() - began);
}
process.exit(0);
