// The pictures that there are.

async function add(picture) {
  picture.image = new Image();
  picture.image.src = picture.url;
  await picture.image.decode();
  const [width, height] = picture.size, scale = 640 / Math.max(width, height);
  picture.canvas = [Math.round(width * scale), Math.round(height * scale)];
  const small = picture.image.cloneNode(), name = document.createElement("span");
  small.alt = "";
  name.textContent = picture.name;
  picture.button = button(element("pictures"), false, () => open(picture), small, name);
  picture.button.title = picture.name;
}

function open(picture) {
  for (const other of page.pictures) {
    if (other.button) other.button.setAttribute("aria-pressed", String(other === picture));
  }
  const shows = Object.entries(SHOWS).filter(([show]) => ({
    pooling: picture.pooling, relevance: picture.classes,
  })[show] !== undefined || !["pooling", "relevance"].includes(show));
  element("show").replaceChildren(...shows.map(([show, name]) => new Option(name, show)));
  return choose({ picture, related: 0 });
}
