// What is known of the model whatever the picture.

function svg(name, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Mean over the pictures of each head's distance; null where no patch attends to patches.
function distances() {
  const all = page.pictures.map((picture) => picture.distances);
  return Array.from({ length: model.layers }, (_, index) =>
    Array.from({ length: model.heads }, (_, head) => {
      const known = all.map((one) => one[index][head]).filter((value) => value !== null);
      return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
    }));
}

function drawDistance() {
  element("distance-card").hidden = !page.pictures.length;
  if (!page.pictures.length) return;
  const found = distances(), highest = Math.max(...found.flat(), 1);
  const step = [1, 2, 5, 10, 20, 50, 100, 200, 500].find((size) => highest / size <= 6) || 1000;
  const top = Math.ceil(highest / step) * step;
  const x = (index) => 40 + (270 * (index + 0.5)) / model.layers;
  const y = (value) => 160 - (145 * value) / top;
  const drawn = svg("svg", { viewBox: "0 0 320 200", role: "img",
    "aria-label": "Mean attention distance of each head, by block" });
  for (let value = 0; value <= top; value += step) {
    drawn.append(svg("line", { x1: 38, x2: 314, y1: y(value), y2: y(value) }),
      svg("text", { x: 32, y: y(value) + 4, "text-anchor": "end" }, String(value)));
  }
  const every = Math.ceil(model.layers / 12);
  found.forEach((heads, index) => {
    if (index % every === 0) {
      drawn.append(svg("text", { x: x(index), y: 177, "text-anchor": "middle" }, String(index + 1)));
    }
    heads.forEach((value, head) => {
      if (value === null) return;
      const on = state.layer === index && state.head === head;
      const dot = svg("circle", { cx: x(index), cy: y(value), r: on ? 5 : 4, class: on ? "on" : "" },
        svg("title", {}, `block ${index + 1}, head ${head + 1}: ${value.toFixed(1)} pixels`));
      dot.addEventListener("click", () => choose({ show: "attention", layer: index, head }));
      drawn.append(dot);
    });
  });
  drawn.append(svg("text", { x: 176, y: 196, "text-anchor": "middle" }, "block"));
  element("distance").replaceChildren(drawn);
}

async function drawSimilarity() {
  element("similarity-card").hidden = !model.similarity;
  if (!model.similarity) return;
  const bytes = await part(model, "similarity", model.similarity), canvas = element("similarity");
  const paintPlace = ([y, x]) => {
    state.place = [y, x];
    [canvas.width, canvas.height] = [columns, rows];
    const context = canvas.getContext("2d"), image = context.createImageData(columns, rows);
    const start = (y * columns + x) * patches;
    for (let i = 0; i < patches; i++) {
      image.data.set([...heat(Math.max(0, bytes[start + i] / 127.5 - 1)), 255], 4 * i);
    }
    context.putImageData(image, 0, 0);
    element("similarity-said").textContent =
      `How alike the position embedding of row ${y + 1}, column ${x + 1} is to all others, by cosine: ` +
      "from 0 or less (dark) to 1. Point at another place, or use the arrow keys.";
  };
  canvas.addEventListener("pointermove", (event) => paintPlace(pointed(event, canvas)));
  canvas.addEventListener("pointerdown", (event) => paintPlace(pointed(event, canvas)));
  canvas.addEventListener("keydown", (event) => {
    const next = moved(event.key, state.place);
    if (next) { paintPlace(next); event.preventDefault(); }
  });
  paintPlace([Math.floor(rows / 2), Math.floor(columns / 2)]);
}

function drawModel() {
  for (const [name, value] of Object.entries(model.facts)) {
    const pair = document.createElement("div"), term = document.createElement("dt");
    const said = document.createElement("dd");
    term.textContent = name;
    said.textContent = value;
    pair.append(term, said);
    element("facts").append(pair);
  }
  element("filters-card").hidden = !model.filters.length;
  element("filters").append(...model.filters.map((url, index) => {
    const made = new Image();
    made.src = url;
    made.alt = `component ${index + 1}`;
    return made;
  }));
  element("layer").max = model.layers;
  element("head").append(new Option("mean of all", -1),
    ...Array.from({ length: model.heads }, (_, head) => new Option(`head ${head + 1}`, head)));
  const scale = element("scale"), context = scale.getContext("2d");
  for (let x = 0; x < scale.width; x++) {
    context.fillStyle = `rgb(${heat(x / (scale.width - 1)).map(Math.round).join()})`;
    context.fillRect(x, 0, 1, scale.height);
  }
}
