// A served page asks its server whether the run has grown, and takes the new data when it has.

const OFTEN = 2000, SELDOM = 15000, CALM = 150;

export function follow(base, source, said, take) {
  let version = null, calm = 0;
  async function look() {
    try {
      if (!document.hidden) {
        const answer = await fetch(`${base}/changed`, { cache: "no-store" });
        if (!answer.ok) throw new Error(String(answer.status));
        const now = await answer.text();
        calm = now === version ? calm + 1 : 0;
        if (version !== null && now !== version) {
          const fresh = await fetch(source, { cache: "no-store" });
          if (fresh.ok) {
            take(await fresh.json());
            said(`grew at ${new Date().toLocaleTimeString()}`);
          }
        }
        version = now;
      }
    } catch {
      said("the server has ended");
      calm = CALM;
    }
    setTimeout(look, calm < CALM ? OFTEN : SELDOM);
  }
  look();
}
