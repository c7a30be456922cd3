// What the pages share: the frames they have received, and waiting for one.

const frames = []; // {kind, ...fields of the frame}, in the order of their arrival
const waiting = []; // {isThere, resolve}

function received(kind, fields) {
  frames.push({ kind, ...fields });
  for (const one of waiting.splice(0)) {
    if (one.isThere()) one.resolve();
    else waiting.push(one);
  }
}

// Resolves as soon as `isThere` is true of the frames.
function until(isThere) {
  return new Promise((resolve) => (isThere() ? resolve() : waiting.push({ isThere, resolve })));
}

// Resolves once the topic's record with this seq is there; gives all frames so far.
async function untilSeq(topic, seq) {
  await until(() => frames.some((frame) => frame.kind === "record" && frame.topic === topic && frame.to_seq >= seq));
  return frames;
}

// Resolves once `count` frames of a kind are there; gives all frames so far.
async function untilCount(kind, count) {
  await until(() => frames.filter((frame) => frame.kind === kind).length >= count);
  return frames;
}
