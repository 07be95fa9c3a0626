// What the page holds, unpacked.

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
