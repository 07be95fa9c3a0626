"use strict";
(() => {
const page = JSON.parse(document.getElementById("data").textContent);
const model = page.model, [rows, columns] = model.grid, prefix = model.prefix.length;
const patches = rows * columns, tokens = prefix + patches;
const element = (id) => document.getElementById(id);
const HEAT = [[40, 20, 90], [150, 40, 130], [240, 90, 70], [255, 215, 100]];
const SHOWS = {
  attention: "Attention",
  pooling: "Attention of the pooling",
  rollout: "Attention rollout, through all blocks",
  relevance: "What speaks for a class",
  components: "Principal components of patches",
  norms: "Lengths of patches' tokens",
};
// What a choice means for each of them: block, head, who attends, class.
const USES = {
  attention: ["layer", "head", "token", "heads"],
  pooling: ["head", "heads"],
  rollout: [],
  relevance: ["class"],
  components: ["layer"],
  norms: ["layer"],
};
// token: the one that attends; null for what becomes the output. head: -1 for the mean of all.
// held: whether a click chose the token, so that the mouse does not change it.
const state = { picture: null, show: "attention", layer: model.layers - 1, head: -1, token: null,
  held: false, related: 0, place: null };
let drawing = 0;

// Data ---------------------------------------------------------------------------------------

function decoded(text) {
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

async function inflated(text) {
  const stream = new Blob([decoded(text)]).stream();
  const plain = stream.pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(plain).arrayBuffer());
}

// What a picture holds under a name, unpacked once.
const unpacked = new WeakMap();
function part(owner, name, text) {
  if (!unpacked.has(owner)) unpacked.set(owner, new Map());
  const known = unpacked.get(owner);
  if (!known.has(name)) known.set(name, inflated(text));
  return known.get(name);
}

// A row: two bytes for its largest value, a byte a value for the root of its share of that.
function row(bytes, number, count = tokens) {
  const start = number * (count + 2);
  const largest = (bytes[start] * 256 + bytes[start + 1]) / 65535;
  const values = new Float32Array(count);
  for (let i = 0; i < count; i++) values[i] = largest * (bytes[start + 2 + i] / 255) ** 2;
  return values;
}

function mean(all) {
  const values = new Float32Array(all[0].length);
  for (const one of all) one.forEach((value, i) => { values[i] += value / all.length; });
  return values;
}

// Rows of all heads for the layer and the token that are chosen; one row where only the mean of the
// heads is known, none where nothing is.
async function attentionOfHeads(picture) {
  if (state.show === "pooling") {
    const bytes = await part(picture, "pooling", picture.pooling);
    return Array.from({ length: model.heads }, (_, head) => row(bytes, head));
  }
  if (state.token === null) {
    const bytes = await part(picture, "read", picture.read);
    return Array.from({ length: model.heads }, (_, head) => row(bytes, state.layer * model.heads + head));
  }
  const { kind, blocks } = picture.hover;
  const block = kind === "last" ? (state.layer === model.layers - 1 ? 0 : -1) : state.layer;
  if (kind === "none" || block < 0) return [];
  const bytes = await part(picture, `hover ${block}`, blocks[block]);
  const known = kind === "heads" ? model.heads : 1;
  return Array.from({ length: known }, (_, head) => row(bytes, head * tokens + state.token));
}

// What is laid over the picture: {values} on the grid, {colors} on the grid, or {} for nothing.
async function layer(picture) {
  switch (state.show) {
    case "attention":
    case "pooling": {
      const heads = await attentionOfHeads(picture);
      if (!heads.length) return { heads };
      const chosen = state.head < 0 || heads.length === 1 ? mean(heads) : heads[state.head];
      return { heads, row: chosen, ...measured(chosen.slice(prefix)) };
    }
    case "rollout":
      return measured(row(await part(picture, "rollout", picture.rollout), 0, patches));
    case "relevance": {
      const chosen = picture.classes[state.related];
      const values = await part(chosen, "relevance", chosen.relevance);
      return { values, range: chosen.range.map(String) };
    }
    case "components": {
      const bytes = await part(picture, "components", picture.components);
      return { colors: bytes.subarray(state.layer * patches * 3, (state.layer + 1) * patches * 3) };
    }
    default: {
      const bytes = await part(picture, "norms", picture.norms);
      const values = bytes.subarray(state.layer * patches, (state.layer + 1) * patches);
      return { values, range: picture.lengths[state.layer].map(String) };
    }
  }
}

// Shares, and from where to where they go, in words.
function measured(values) {
  return { values, range: [Math.min(...values), Math.max(...values)].map(percent) };
}

// Drawing ------------------------------------------------------------------------------------

function heat(part) {
  const place = Math.min(Math.max(part, 0), 1) * (HEAT.length - 1);
  const below = Math.min(Math.floor(place), HEAT.length - 2), rest = place - below;
  return HEAT[below].map((value, i) => value * (1 - rest) + HEAT[below + 1][i] * rest);
}

// The grid as a tiny picture, which the browser enlarges smoothly.
function grid({ values, colors }) {
  const small = new OffscreenCanvas(columns, rows), context = small.getContext("2d");
  const image = context.createImageData(columns, rows);
  // Where a few patches outshine all others, these are seen too.
  const order = Float32Array.from(values ?? [0]).sort(), low = order[0];
  const high = order[Math.ceil(0.98 * (order.length - 1))];
  for (let i = 0; i < patches; i++) {
    if (colors) {
      image.data.set([colors[3 * i], colors[3 * i + 1], colors[3 * i + 2], 255], 4 * i);
    } else {
      const share = high - low > 1e-6 * high ? Math.min((values[i] - low) / (high - low), 1) : 0;
      image.data.set([...heat(share), 70 + 150 * share], 4 * i);
    }
  }
  context.putImageData(image, 0, 0);
  return small;
}

function paint(canvas, picture, found) {
  const context = canvas.getContext("2d"), { width, height } = canvas;
  context.clearRect(0, 0, width, height);
  context.imageSmoothingEnabled = true;
  context.drawImage(picture.image, 0, 0, width, height);
  if (!found.values && !found.colors) return;
  if (found.values) {  // grey below: colours mean attention alone
    context.globalCompositeOperation = "saturation";
    context.fillStyle = "#808080";
    context.fillRect(0, 0, width, height);
    context.globalCompositeOperation = "source-over";
  }
  context.imageSmoothingQuality = "low";  // bilinear: cells' centres keep their values
  context.drawImage(grid(found), 0, 0, columns, rows, 0, 0, width, height);
}

function outline(canvas, token) {
  if (token === null || token < prefix) return;
  const context = canvas.getContext("2d"), place = token - prefix;
  const width = canvas.width / columns, height = canvas.height / rows;
  const box = [(place % columns) * width, Math.floor(place / columns) * height, width, height];
  for (const [color, line] of [["#000", 5], ["#fff", 2.5]]) {
    context.strokeStyle = color;
    context.lineWidth = line;
    context.strokeRect(...box);
  }
}

function percent(value) {
  return value >= 0.0995 ? `${Math.round(100 * value)} %` : `${(100 * value).toFixed(1)} %`;
}

function nameOf(token) {
  if (token === null) return model.reader;
  if (token < prefix) return model.prefix[token];
  const place = token - prefix;
  return `the patch in row ${Math.floor(place / columns) + 1}, column ${(place % columns) + 1}`;
}

function listed(names) {
  if (names.length < 2) return names.join();
  return names.length > 3 ? `${names[0]} and ${names.length - 1} other tokens`
    : `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;
}

function told(picture, found) {
  const block = `block ${state.layer + 1}`;
  const name = nameOf(state.token), who = /^(the|all|register)/.test(name) ? name : `the ${name}`;
  switch (state.show) {
    case "attention": {
      if (!found.row) return "This page knows where single patches attend in the last block alone.";
      const one = state.head >= 0 && found.heads.length > 1;
      const alone = state.token !== null && found.heads.length === 1 && model.heads > 1;
      const which = one ? `head ${state.head + 1}`
        : `the mean of all heads${alone ? ", which is all that this page knows of patches" : ""}`;
      const ahead = found.row.slice(0, prefix).reduce((sum, value) => sum + value, 0);
      const rest = prefix ? ` ${percent(ahead)} of it goes to the ${listed(model.prefix)}.` : "";
      return `Where ${who} attend${/^all| and /.test(name) ? "" : "s"} in ${block}, ${which}.${rest}`;
    }
    case "pooling":
      return state.head < 0 ? "Where the pooling attends, the mean of its heads."
        : `Where head ${state.head + 1} of the pooling attends.`;
    case "rollout":
      return "How much of each patch reaches the output, with all blocks' attention multiplied.";
    case "relevance":
      return `Patches whose attention speaks for “${picture.classes[state.related].name}”.`;
    case "components":
      return `Behind ${block}: patches of one colour have become alike. Colours are of this picture; ` +
        "in another one they mean other things.";
    default:
      return `How long patches' tokens are behind ${block}; outliers are what registers take in.`;
  }
}

async function draw() {
  const picture = state.picture, ticket = ++drawing;
  element("look").hidden = picture === null;
  if (picture === null) return;
  const found = await layer(picture);
  if (ticket !== drawing) return;  // something else was chosen meanwhile
  const uses = USES[state.show], view = element("view");
  [view.width, view.height] = picture.canvas;
  paint(view, picture, found);
  if (uses.includes("token")) outline(view, state.token);
  element("told").textContent = told(picture, found);
  view.setAttribute("aria-label", `${picture.name}: ${SHOWS[state.show]}`);
  for (const field of ["layer", "head", "token"]) {
    element(`${field}-field`).hidden = !uses.includes(field);
  }
  element("layer").value = state.layer + 1;
  element("layer-said").textContent = `${state.layer + 1} of ${model.layers}`;
  const meanAlone = Boolean(found.heads) && found.heads.length <= 1 && model.heads > 1;
  element("head").value = meanAlone ? -1 : state.head;
  element("head").disabled = meanAlone;
  element("show").value = state.show;
  drawLegend(found);
  drawKeys(picture, uses);
  drawTokens(found);
  drawClasses(picture);
  drawHeads(picture, found);
  drawDistance();
}

function button(parent, pressed, act, ...children) {
  const made = document.createElement("button");
  made.type = "button";
  made.setAttribute("aria-pressed", String(pressed));
  made.append(...children);
  made.addEventListener("click", act);
  parent.append(made);
  return made;
}

function strong(text) {
  const made = document.createElement("b");
  made.textContent = text;
  return made;
}

// Replaces the buttons of a group; the one that had the focus has it again.
function refill(parent, fill) {
  const place = [...parent.children].indexOf(document.activeElement);
  parent.replaceChildren();
  fill();
  if (place >= 0 && parent.children[place]) parent.children[place].focus();
}

function drawLegend(found) {
  element("legend").hidden = !found.values;
  if (!found.values) return;
  const [low, high] = found.range, alike = patches - 1 - Math.ceil(0.98 * (patches - 1));
  element("least").textContent = low;
  element("most").textContent = high;
  element("alike").textContent = alike > 0 ? `The ${alike + 1} highest patches are drawn alike.` : "";
}

function drawKeys(picture, uses) {
  const asks = uses.includes("token") && picture.hover.kind !== "none";
  const said = [];
  if (asks) {
    said.push(state.held ? "Held: click the patch again, or press Escape, to let it go."
      : "Point at a patch to see where it attends; a click, a tap or the arrow keys hold it.");
  }
  if (uses.includes("layer")) said.push("L and Shift+L change the block.");
  if (uses.includes("head")) said.push("H and Shift+H change the head.");
  element("keys").textContent = said.join(" ");
}

function drawTokens(found) {
  const parent = element("tokens");
  refill(parent, () => {
    const choices = [[null, `output: ${model.reader}`], ...model.prefix.map((name, i) => [i, name])];
    for (const [token, name] of choices) {
      if (token !== null && name === model.reader) continue;
      const share = found.row && token !== null ? [" ", strong(percent(found.row[token]))] : [];
      const act = () => choose({ token, held: token !== null });
      const made = button(parent, state.token === token, act, name, ...share);
      made.hidden = token !== null && state.picture.hover.kind === "none";
    }
    if (state.token !== null && state.token >= prefix) {
      button(parent, true, () => choose({ token: null, held: false }), nameOf(state.token).replace("the ", ""));
    }
  });
}

function drawClasses(picture) {
  element("class-field").hidden = !picture.classes;
  if (!picture.classes) return;
  const parent = element("classes");
  refill(parent, () => picture.classes.forEach((found, index) => {
    const on = state.show === "relevance" && state.related === index;
    const made = button(parent, on, () => choose({ show: "relevance", related: index }),
      found.name, strong(percent(found.probability)));
    made.title = "Show what speaks for it";
  }));
}

function drawHeads(picture, found) {
  const several = Boolean(found.heads) && found.heads.length > 1;
  element("heads-field").hidden = !several;
  if (!several) return;
  element("heads-name").textContent =
    state.show === "pooling" ? "All heads of the pooling" : "All heads of this block";
  const parent = element("heads"), [width, height] = picture.canvas;
  refill(parent, () => found.heads.forEach((values, head) => {
    const small = document.createElement("canvas");
    small.width = 96;
    small.height = Math.round((96 * height) / width);
    paint(small, picture, { values: values.slice(prefix) });
    const made = button(parent, state.head === head,
      () => choose({ head: state.head === head ? -1 : head }), small);
    made.setAttribute("aria-label", `head ${head + 1}`);
  }));
}

// Choosing -----------------------------------------------------------------------------------

function choose(changes) {
  Object.assign(state, changes);
  return draw();
}

function turned(value, step, low, high) {
  return Math.min(Math.max(value + step, low), high);
}

// Row and column that a key moves to; null where the key moves nothing.
function moved(key, place) {
  const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
  if (!(key in steps)) return null;
  if (place === null) return [Math.floor(rows / 2), Math.floor(columns / 2)];
  const [down, right] = steps[key];
  return [turned(place[0], down, 0, rows - 1), turned(place[1], right, 0, columns - 1)];
}

function pointed(event, canvas) {
  const box = canvas.getBoundingClientRect();
  const y = Math.floor(((event.clientY - box.top) / box.height) * rows);
  const x = Math.floor(((event.clientX - box.left) / box.width) * columns);
  return [turned(y, 0, 0, rows - 1), turned(x, 0, 0, columns - 1)];
}

function watch() {
  const view = element("view");
  const asks = () => USES[state.show].includes("token") && state.picture.hover.kind !== "none";
  const ask = ([y, x], held) => {
    const token = prefix + y * columns + x;
    if (asks() && (token !== state.token || held !== state.held)) choose({ token, held });
  };
  const release = () => choose({ token: null, held: false });
  view.addEventListener("pointermove", (event) => {
    if (event.pointerType === "mouse" && !state.held) ask(pointed(event, view), false);
  });
  view.addEventListener("pointerdown", (event) => {
    const [y, x] = pointed(event, view), again = state.token === prefix + y * columns + x;
    if (again && state.held) release();
    else ask([y, x], true);
  });
  view.addEventListener("pointerleave", () => {
    if (!state.held && state.token !== null) release();
  });
  view.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const place = state.token === null || state.token < prefix ? null
      : [Math.floor((state.token - prefix) / columns), (state.token - prefix) % columns];
    const next = moved(event.key, place), step = event.shiftKey ? -1 : 1;
    if (next) ask(next, true);
    else if (event.key === "Escape") release();
    else if (event.key.toLowerCase() === "l") choose({ layer: turned(state.layer, step, 0, model.layers - 1) });
    else if (event.key.toLowerCase() === "h") choose({ head: turned(state.head, step, -1, model.heads - 1) });
    else return;
    event.preventDefault();
  });
  element("show").addEventListener("change", (event) => choose({ show: event.target.value }));
  element("layer").addEventListener("input", (event) => choose({ layer: Number(event.target.value) - 1 }));
  element("head").addEventListener("change", (event) => choose({ head: Number(event.target.value) }));
}

// Pictures -----------------------------------------------------------------------------------

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

// The model ----------------------------------------------------------------------------------

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

// Live ---------------------------------------------------------------------------------------

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
})();
