"""Every command that writes, as the smallest job that still does its work: struck by kills.py and faults.py, each by its name.

``{in}`` is the folder of inputs (``kill_inputs.py``), ``{parts}`` that module's file. A command that writes and is missing here
fails test_kills.py; so does one that writes and is listed under READS.
"""

from __future__ import annotations

from verb_jobs import Serve, ServeComposer, ServePages, ServeWorld, Verb

WORDS = "--model {parts}:wander --out run --json"
FORKED = "--model hf:{in}/tuned --verifier {parts}:begins_well --truncated graded"
PAIR = "--tuned hf:{in}/tuned --base hf:{in}/base --layer 1 --tool {in}/tool.jsonl --plain {in}/plain.jsonl --raw"
DRAFTER = "dspark {} hf:{{in}}/tuned {} --prompts {{in}}/tool.jsonl --raw --json"
ORGANISM = "factory:tests.methods.forensics.scripted_organisms"
HALL = "--model factory:tests.halls:agent --env factory:tests.halls:Halls"
POOL, ASKED = "{in}/pool.toml", "--tasks {in}/asked.jsonl"
LOOP = "--out loop --rounds 1 --iterations 2 --people 4 --runs 6 --searched 3"
GRID = "--out bench --tasks email,spend --reps 1 --turns 4 --json"

VERBS: tuple[Verb, ...] = (
    # What is made and continues: the same command, or resume, ends where an undisturbed one does.
    Verb("rollout --count 2 --attempts 3 " + WORDS),
    Verb("rollout --tree --count 2 --tree-budget 12 " + WORDS, name="rollout-tree"),
    Verb("rollout --count 1 --attempts 2 --max-reply 12 --out run --json", name="rollout-tokens"),
    Verb(
        f"record -n 2 --repo {{in}}/work --check 'grep -q wait notes.txt' {WORDS.replace('--out', '--run')} "
        "-- python3 {in}/coder.py",
        warm=False,
    ),
    Verb("resume run --json", first="rollout --count 2 --attempts 3 " + WORDS),
    Verb(
        "improve --updates 1 --tokens 300 --eval-episodes 4 --tasks-per-update 4 --train-tasks 8 --out run --json",
        again="resume run --json",
        timed=("run/report.html",),
    ),
    Verb("fork run {node} --n 3 --edit {in}/edit.json --json", after="rollout-tokens", repeats=True),
    Verb("why run --first 2 --n 4 --json", after="rollout"),
    Verb("test run --json", after="rollout"),
    Verb(f"rollout --count 1 --attempts 3 {HALL} --out run --json", name="rollout-hall"),
    Verb("why run --n 24 --json", after="rollout-hall", name="why-describe"),
    Verb(
        "fix run {node} --rule 'Go left.' --n 4 --tasks 2 --attempts 2 --write kept.json --json",
        after="rollout-hall",
        passes=("kept.json",),
    ),
    Verb(
        "test run {node} --expect says:go --n 6 --write test_go.py --junit out.xml --json",
        after="rollout-hall",
        name="test-step",
        passes=("test_go.py", "test_go.json", "out.xml"),
    ),
    Verb("why run --share --n 8 --describe 0 --json", after="rollout-hall", name="why-share"),
    Verb("why run --judge {parts}:blames --way steps --way halving --json", after="rollout", name="why-judge"),
    Verb("why run {node} --context --samples 12 --json", after="rollout-tokens", name="why-context"),
    Verb("why run {node} --tokens --samples 24 --json", after="rollout-tokens", name="why-tokens"),
    Verb(
        f"cliffs scan {FORKED} --problems {{in}}/problems.jsonl --samples 2 --max-tokens 4 --n 16 --out scan --json",
        readers=("cliffs show scan --json",),
    ),
    Verb(f"cliffs ablate scan {FORKED} --k 1 --n 4 --json", after="cliffs scan"),
    Verb(
        "crosscoder steer dictionary states --prompts {in}/test.jsonl --out study --raw --score {parts}:begins_well --features "
        "0,9 "
        "--gains 1,8 --clamps 4 --budgets 1 --randoms 1 --json",
        after="crosscoder train",
        readers=("crosscoder show study --json",),
    ),
    Verb(
        DRAFTER.format("train", "--out drafter --sequences 8 --length 12 --steps 4 --rows 4 --anchors 4 --layers 1 --block 3"),
        passes=("drafter/training/*",),
    ),
    Verb(
        "early-decision run --model hf:{in}/tuned --label regex:word1|sorry --prompts {in}/thinking.jsonl --out study --k 2 "
        "--temperature 1 --top-p 1 --think-tokens 16 --answer-tokens 3 --json",
    ),
    Verb(
        "early-decision continue study --m 2 --n 2 --shares 0,0.5,1 --json",
        after="early-decision run",
    ),
    Verb(
        "early-decision continue study turns --judges '[\"{parts}:make_judge\"]' --answers 2 --traces 2 --limit 40 --least 5 "
        "--json",
        after="early-decision run",
        name="early-decision turns",
    ),
    Verb("early-decision calibrate study --every 2 --held-out 0 --json", after="early-decision run"),
    Verb(
        "diagnose run --repo {in}/shop --issue {in}/issue.md --out found --case case.json --json",
        readers=("diagnose inject found --all --json",),
    ),
    Verb("forensics run case --json", after="forensics plan"),
    Verb("forensics change case field errors --n 4 --json", name="forensics change field", after="forensics run"),
    Verb("forensics change case variant clear --n 4 --json", name="forensics change variant", after="forensics run"),
    Verb("forensics change case forbid huge 'huge task' --n 4 --json", name="forensics change forbid", after="forensics run"),
    Verb(
        "forensics change case insert honesty 'I want to be honest.' --k 4 --json",
        name="forensics change insert",
        after="forensics run",
    ),
    Verb("forensics change case sentences --k 4 --json", name="forensics change sentences", after="forensics run"),
    Verb("forensics change case sentences {did} {not} --k 4 --json", name="forensics change transplant", after="forensics run"),
    Verb(
        f"forensics change case variant clear --known {ORGANISM}:unclear --n 4 --json",
        name="forensics change known",
        after="forensics change variant",
    ),
    Verb("forensics ask case question why Why? fix --n 4 --json", name="forensics ask question", after="forensics run"),
    Verb("forensics ask case self-report report fix --n 3 --json", name="forensics ask self-report", after="forensics run"),
    Verb("forensics ask case user-turn turn fix --n 3 --json", name="forensics ask user-turn", after="forensics run"),
    Verb("forensics ask case audit-notes notes work --n 4 --json", name="forensics ask audit-notes", after="forensics run"),
    Verb("forensics ask case scale shortcuts shortcuts --n 3 --json", name="forensics ask scale", after="forensics run"),
    Verb(
        "forensics ask case commitment skips ' I will skip it.' --at sentences --n 3 --json",
        name="forensics ask commitment",
        after="forensics run",
    ),
    Verb("governance bench " + GRID, readers=("governance report bench --json",)),
    Verb("judge-evolution evolve {in}/essays --out run --json", readers=("judge-evolution show run --json",)),
    Verb("judge-evolution rescore run reviewer --judge regex:new --json", after="import-candidates"),
    Verb(f"theory-loop run {LOOP} --json", readers=("theory-loop show loop --json",)),
    Verb(f"theory-loop run {LOOP} --participants web --json", name="theory-loop run-web"),
    Verb(
        "theory-loop data import loop people.csv --json", name="theory-loop data-import", after="theory-loop data-simulate-design"
    ),
    Verb("theory-loop confirm loop claim.json --json", after="theory-loop confirm-register"),
    Verb("verify-or-ship calibrate run --judge new=regex:new --out tables.json --json", after="import-candidates"),
    Verb("governance attack --budget 20 " + GRID),
    Verb(f"orchestrator collect {POOL} {ASKED} --n 5 --out run --json"),
    Verb(
        f"orchestrator train evolved router --pool {POOL} {ASKED} --judge exact --evolved.generations 3 --evolved.size 4 "
        "--evolved.episodes 4 --evolved.check 4 --run evolution --out evolved --json",
        name="orchestrator train-evolved",
        after="orchestrator train",
        once="evolved",
    ),
    Verb(f"orchestrator eval {POOL} {ASKED} --out run --json"),
    Verb(
        f"orchestrator run {POOL} what? --composer {{parts}}:plans --out run --json",
        readers=("orchestrator show trace run --json",),
    ),
    Verb("world-model record --env household --episodes 4 --turns 3 --out run --json"),
    Verb(
        "world-model train recorded --out world --steps 4 --rows 2 --width 32 --layers 1 --vocab 290 --max-tokens 12 --json",
        after="world-model record-first",
        passes=("world/blobs/*",),
    ),
    # What is written whole or not at all.
    Verb("import {in}/chats.jsonl --run run --json", once="run"),
    Verb("import {in}/candidates.jsonl --run run --json", name="import-candidates", once="run"),
    Verb("export run out.jsonl --json", name="export-jsonl", after="import", old="out.jsonl"),
    Verb("export run out.parquet --json", name="export-parquet", after="import", old="out.parquet"),
    Verb("export run out.dot --tree {tree} --json", name="export-dot", after="import", old="out.dot"),
    Verb("export run out.html --json", name="export-html", after="import", old="out.html"),
    Verb("show run --html page.html --json", after="rollout", old="page.html"),
    Verb("new env my-world --out my-world --json", once="my-world"),
    Verb(
        "cliffs pairs scan --out pairs.jsonl --candidates 3 --n 8 --classes deterministic,uncertain,sampled_off,other --json "
        + FORKED,
        after="cliffs scan",
        old="pairs.jsonl",
    ),
    Verb("cliffs show scan q0#0 --svg one.svg --json", after="cliffs scan", name="cliffs show-svg"),
    Verb(f"crosscoder capture {PAIR} --out states --json"),
    Verb(
        "crosscoder train states --features 24 --k 4 --steps 30 --batch 16 --lr 0.01 --out dictionary --json",
        after="crosscoder capture",
    ),
    Verb("crosscoder show dictionary states --partition all --out rank.csv --json", after="crosscoder train", old="rank.csv"),
    Verb("crosscoder show study --out report.md --json", name="crosscoder show-study", after="crosscoder steer", old="report.md"),
    Verb("crosscoder export dictionary states --features 0,3 --out vectors --json", after="crosscoder train"),
    Verb(DRAFTER.format("calibrate", "drafter --n 12 --tokens 12"), after="dspark train"),
    Verb(DRAFTER.format("profile", "drafter --loads 1,2 --repeats 3"), after="dspark train", timed=("drafter/profile.json",)),
    Verb("early-decision probe study --layers 0 --at h0 --shuffles 199 --json", after="early-decision run"),
    Verb(
        "early-decision probe study valley --points 6 --samples 20 --json",
        after="early-decision run",
        name="early-decision valley",
    ),
    Verb("early-decision report study --json", after="early-decision continue"),
    Verb(f"forensics plan case --env {ORGANISM}:environment --model {ORGANISM}:tedious", once="case/case.toml"),
    Verb("forensics report case hypotheses --json", name="forensics report hypotheses", after="forensics change variant"),
    Verb("forensics report case --out report.md --json", after="forensics change variant", old="report.md"),
    Verb("governance report bench --out report.md --json", after="governance bench", old="report.md"),
    Verb("governance judge bench --judge {parts}:grades --json", after="governance bench"),
    Verb("governance audit {in}/chats.jsonl --rules {in}/rules.txt --out report.md --json", old="report.md"),
    Verb("graph-credit advantages {in}/steps.jsonl --out credit.jsonl --json", old="credit.jsonl"),
    Verb("graph-credit advantages {in}/steps.jsonl --out credit.parquet --json", name="graph-credit advantages-parquet"),
    Verb("graph-credit show {in}/steps.jsonl --out graph.graphml --json", name="graph-credit show-out", old="graph.graphml"),
    Verb("graph-credit mark run --json", after="rollout"),
    Verb(
        "implicit-advantage score --trajectories {in}/attempts.jsonl --policy hf:{in}/tuned --reference hf:{in}/base --cache "
        "cache "
        "--out scores --json"
    ),
    Verb("implicit-advantage select --scores scores --best-of 2 --out chosen.jsonl --json", after="implicit-advantage score"),
    Verb(
        "implicit-advantage judge --scores scores --trajectories {in}/attempts.jsonl --model {parts}:grades "
        "--tokenizer hf:{in}/tuned --json",
        after="implicit-advantage score",
    ),
    Verb("implicit-advantage blame --scores scores --json", after="implicit-advantage score"),
    Verb("judge-evolution check run --truth verifier --judge stored:tests --judge regex:new --json", after="import-candidates"),
    Verb(
        "judge-evolution promote run reviewer --anchor {in}/anchor.jsonl --judge regex:old --against regex:new --json",
        after="judge-evolution rescore",
        repeats=True,
    ),
    Verb(
        "judge-evolution promote run reviewer --to nobody --json",
        name="judge-evolution promote-to",
        after="judge-evolution rescore",
    ),
    Verb(
        "judge-evolution show run --git archive --json",
        name="judge-evolution show-git",
        after="judge-evolution evolve",
        once="archive",
    ),
    Verb(
        "theory-loop confirm loop claim.json --register --people 8 --rival coin --json",
        name="theory-loop confirm-register",
        after="theory-loop run",
    ),
    Verb(
        "theory-loop data export loop --out task.html --json",
        name="theory-loop data-export",
        after="theory-loop run",
        old="task.html",
    ),
    Verb(
        "theory-loop data export loop --out design.json --json",
        name="theory-loop data-export-design",
        after="theory-loop run-web",
    ),
    Verb(
        "theory-loop data simulate wadd --design design.json --count 4 --out people.csv --json",
        name="theory-loop data-simulate-design",
        after="theory-loop data-export-design",
        old="people.csv",
    ),
    Verb("maze-recovery audit {in}/walks.jsonl --out rows.jsonl --json", old="rows.jsonl"),
    Verb("maze-recovery build {in}/walks.jsonl --mode success_raw --out set.jsonl --json", old="set.jsonl"),
    Verb("maze-recovery train --w 3 --k 3 --l 2 --steps 10 --out steps.jsonl --json", old="steps.jsonl"),
    Verb("check method maze-recovery --quick --out counts.json --json", warm=False, timed=("cache/*seconds.json", "counts.json")),
    Verb("repro maze-recovery --quick --out figures.json --json", warm=False, timed=("cache/*seconds.json", "figures.json")),
    Verb("orchestrator show headroom run --json", name="orchestrator show-headroom", after="orchestrator collect"),
    Verb(
        "orchestrator train router run --router.backbone hf:{in}/tuned --router.steps 20 --run fitted --out router --json",
        after="orchestrator collect",
        once="router",
    ),
    Verb(
        f"orchestrator train composer hf:{{in}}/planner --pool {POOL} {ASKED} --composer.warm 2 --composer.updates 1 "
        "--composer.questions 1 --composer.group 2 --composer.max-tokens 8 --composer.no-shots --run trained "
        "--out composer --json",
        name="orchestrator train-composer",
        once="composer",
    ),
    Verb("earned-code-memory export {in}/memory.sqlite files --out tools --json"),
    Verb("world-model record --env household --episodes 3 --turns 2 --out recorded --json", name="world-model record-first"),
    Verb("world-model prepare {in}/chats.jsonl --out rows.jsonl --json", old="rows.jsonl"),
    Verb("world-model eval {in}/copied.toml --data run --judge none --json", after="world-model record"),
    Verb("world-model audit run --env household --json", after="world-model record"),
    Verb("verify-or-ship regimes {in}/candidates.jsonl --sweep c_ver=15,50 --out map.csv --json", old="map.csv"),
    Verb("verify-or-ship replay run --json", after="import-candidates"),
    Verb("verify-or-ship score run --out request.md --json", after="import-candidates", old="request.md"),
    Verb("verify-or-ship replay run --shadow --json", name="verify-or-ship replay-shadow", after="import-candidates"),
    ServeComposer(f"orchestrator serve {POOL} --composer {{parts}}:plans --port {{port}} --out run --json"),
    Serve("serve builtin --port {port} --record ./run --json"),
    ServeWorld("world-model serve --model predict:{parts}:echoes --prompt Hello. --cache run --http --port {port} --json"),
)
JOBS: dict[str, Verb] = {verb.name: verb for verb in VERBS}

#: Commands that only read: they leave every file as it is, which a test runs them for.
READERS: tuple[Verb, ...] = (
    Verb("show run --json", after="rollout"),
    ServePages("ui . --port {port}", after="rollout"),
    Verb("list env --json"),
    Verb("completion bash"),
    Verb("doctor --json"),
    Verb("check run run --json", after="rollout"),
    Verb("cliffs show scan --json", after="cliffs scan"),
    Verb(DRAFTER.format("bench", "drafter --n 4 --tokens 8 --loads 1 --turns 3"), after="dspark train"),
    Verb(DRAFTER.format("verify-lossless", "drafter --n 2 --samples 1000 --schedule fixed:2"), after="dspark train"),
    Verb("diagnose inject found --all --json", after="diagnose run"),
    Verb("diagnose eval found {in}/gold.jsonl --json", after="diagnose run"),
    Verb("diagnose eval {in}/chats.jsonl --json", name="diagnose eval-cost"),
    Verb("diagnose inject --json", name="diagnose inject-threshold"),
    Verb("diagnose mask {in}/issue.md --repo {in}/shop --json"),
    Verb('diagnose tools --repo {in}/shop --call \'{"name": "repo_tree", "arguments": {}}\' --json'),
    Verb("forensics plan case --json", name="forensics plan-again", after="forensics plan"),
    Verb("forensics report case runs --json", after="forensics run"),
    Verb("forensics report {in}/chats.jsonl log --behavior regex:x --json"),
    Verb("forensics ask case hypotheses --proposer {parts}:grades --json", after="forensics run"),
    Verb("graph-credit report {in}/steps.jsonl --json"),
    Verb("graph-credit show {in}/steps.jsonl"),
    Verb("graph-credit why {in}/steps.jsonl --task t0 --attempt 1 --step 0 --json"),
    Verb("implicit-advantage report --scores scores --json", after="implicit-advantage score"),
    Verb("judge-evolution show run --json", after="judge-evolution rescore"),
    Verb("kernel-search diagnose {in}/sum.c:sum --loops --json", name="kernel-search diagnose-loops"),
    Verb(f"orchestrator collect {POOL} --check --json", name="orchestrator collect-check"),
    Verb("orchestrator show trace run --json", name="orchestrator show", after="orchestrator run"),
    Verb("kernel-search bench {in}/sum.c {in}/sum.c --pairs 4 --json"),
    Verb("kernel-search diagnose {in}/add.sass --json"),
    Verb("maze-recovery exact --w 3 --k 3 --l 2 --json"),
    Verb("theory-loop show loop --json", after="theory-loop run"),
    Verb("theory-loop show loop leaderboard --json", name="theory-loop show-leaderboard", after="theory-loop run"),
    Verb("theory-loop check loop --json", name="theory-loop check-run", after="theory-loop run"),
    Verb("theory-loop check ttb --json"),
    Verb("tree-rollouts report run --json", after="rollout-tree"),
    Verb("theory-loop check ttb --against wadd --count 10 --json", name="theory-loop check-against"),
    Verb("verify-or-ship plan run --json", after="verify-or-ship calibrate"),
)

_OF_A_MEMORY = "learn recall show review"
_OF_A_KERNEL = "diagnose search explain tune"
ELSEWHERE = {
    *("mcp", "ui"),
    *(f"earned-code-memory {verb}" for verb in _OF_A_MEMORY.split()),
    *(f"kernel-search {verb}" for verb in _OF_A_KERNEL.split()),
}
"""Commands whose one file is a log of their own with transactions of its own (tests/methods/earned_code_memory/test_memory.py
kills its writers), whose jobs are other commands (tests/jobs/test_queue.py kills them and their server), and whose records are
measured times (tests/methods/kernel_search/test_kernel_verbs.py kills the search; what was committed is taken over)."""
