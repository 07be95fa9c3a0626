// The picture, what is laid over it, and the controls beside it.

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
