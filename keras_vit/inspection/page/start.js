// The beginning of it all.

async function start() {
  drawModel();
  watch();
  if (page.live) listen();
  await drawSimilarity();
  drawDistance();
  for (const picture of page.pictures) await add(picture);
  if (page.pictures.length) await open(page.pictures[0]);
  document.documentElement.dataset.ready = "yes";
}

start().catch((error) => {
  say("This page needs a current browser: Chrome 80, Firefox 113, Safari 16.4 or newer.");
  throw error;
});
