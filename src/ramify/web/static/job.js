// A job's page while it runs: takes what changed, and the whole page once it is over.
(async () => {
  const box = document.getElementById("job"), source = box && box.dataset.source;
  for (let lost = 0; source; ) {
    await new Promise((next) => setTimeout(next, 700));
    try {
      const answer = await fetch(source), told = await answer.json();
      if (told.over) return location.reload();
      for (const [id, text] of Object.entries(told.texts)) document.getElementById(id).textContent = text;
      document.getElementById("bar").value = told.share;
      lost = 0;
    } catch {
      if (++lost === 5) document.getElementById("note").textContent = "The server does not answer.";
    }
  }
})();
