// What the page is about, and what is chosen.

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
