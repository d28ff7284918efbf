// What is wrong with the layout of a report, as a list of sentences; nothing is changed but that details are open.
(slack) => {
  const wrong = [];
  const shown = (element) => element.getClientRects().length > 0;
  const name = (element) => JSON.stringify(element.textContent.trim().slice(0, 60));

  const inside = (box, frame) =>
    box.left >= frame.left - slack && box.right <= frame.right + slack &&
    box.top >= frame.top - slack && box.bottom <= frame.bottom + slack;
  // Boxes of texts have room for accents that are not there: a part of the height may touch.
  const shrunk = (box) => {
    const [x, y] = [Math.min(slack, box.width / 4), Math.min(box.height * 0.2, box.height / 4)];
    const upright = box.height > box.width * 2 && box.height > 24;
    return upright
      ? { left: box.left + box.width * 0.2, right: box.right - box.width * 0.2, top: box.top + x, bottom: box.bottom - x }
      : { left: box.left + x, right: box.right - x, top: box.top + y, bottom: box.bottom - y };
  };
  const overlap = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;

  let texts = 0;
  for (const chart of document.querySelectorAll("svg.chart")) {
    if (!shown(chart)) { wrong.push(`a chart is not shown: ${name(chart)}`); continue; }
    const frame = chart.getBoundingClientRect();
    const labels = [...chart.querySelectorAll("text")].map((text) => [text, text.getBoundingClientRect()]);
    labels.sort((a, b) => a[1].left - b[1].left);
    texts += labels.length;
    labels.forEach(([text, box], at) => {
      if (!inside(box, frame)) wrong.push(`cut in ${name(chart.querySelector("title"))}: ${name(text)}`);
      if (box.width === 0) wrong.push(`a label without width: ${name(text)}`);
      for (let next = at + 1; next < labels.length && labels[next][1].left < box.right; next++) {
        if (overlap(shrunk(box), shrunk(labels[next][1]))) {
          wrong.push(`overlap in ${name(chart.querySelector("title"))}: ${name(text)} and ${name(labels[next][0])}`);
        }
      }
    });
  }

  const width = document.documentElement.clientWidth;
  if (document.documentElement.scrollWidth > width) {
    wrong.push(`the page is ${document.documentElement.scrollWidth} wide on a screen of ${width}`);
  }
  for (const element of document.querySelectorAll("main *:not(svg *)")) {
    if (!shown(element) || element.closest(".wide") !== null) continue;
    if (element.getBoundingClientRect().right > width + slack) wrong.push(`beyond the edge: ${name(element)}`);
  }
  for (const cell of document.querySelectorAll("th, td, dd, dt, pre, p, summary, li")) {
    if (shown(cell) && cell.scrollWidth > cell.clientWidth + 1 && getComputedStyle(cell).display !== "inline") {
      wrong.push(`wider than its cell: ${name(cell)}`);
    }
  }
  return { wrong: wrong.slice(0, 40), count: wrong.length, texts };
}
