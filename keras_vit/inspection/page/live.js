// Pictures that a server looks at.

function say(text) {
  element("status").textContent = text;
}

// Whether the picture was looked at.
async function send(file) {
  if (file.size > page.live.most) {
    say(`${file.name} has ${(file.size / 1e6).toFixed(1)} MB; ${page.live.most / 1e6} MB is the most.`);
    return false;
  }
  say(`Looking at ${file.name} …`);
  let answer;
  try {
    const response = await fetch(`look?name=${encodeURIComponent(file.name)}`,
      { method: "POST", body: file, headers: { "X-Keras-Vit": "look" } });
    answer = await response.json();
  } catch {
    say("The server does not answer. Is it still running?");
    return false;
  }
  if (answer.error) {
    say(answer.error);
    return false;
  }
  await add(answer.picture);
  page.pictures.push(answer.picture);
  // As many as a browser keeps easily.
  while (page.pictures.length > 12) page.pictures.shift().button.remove();
  await open(answer.picture);
  answer.picture.button.scrollIntoView({ inline: "nearest", block: "nearest" });
  say("");
  return true;
}

// One after the other; where one fails, its message stays.
async function sendAll(files) {
  for (const file of files) if (!await send(file)) return;
}

function listen() {
  const drop = element("drop"), input = element("file");
  drop.hidden = false;
  input.addEventListener("change", () => {
    sendAll([...input.files]);
    input.value = "";
  });
  for (const kind of ["dragover", "dragleave", "drop"]) {
    document.addEventListener(kind, (event) => {
      event.preventDefault();
      drop.classList.toggle("over", kind === "dragover");
      if (kind === "drop") sendAll([...event.dataTransfer.files]);
    });
  }
  document.addEventListener("paste", (event) => {
    sendAll([...event.clipboardData.files]);
  });
}
