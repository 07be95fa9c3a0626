// Mouse, fingers and keys.

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
