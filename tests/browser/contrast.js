// Texts of the page outside of pictures whose colour is too close to what is behind them (WCAG 2, 4.5 to 1).
() => {
  const parse = (colour) => (colour.match(/[\d.]+/g) || []).map(Number);
  const luminance = ([r, g, b]) => {
    const part = (value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const behind = (element) => {
    for (let at = element; at !== null; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const wrong = [];
  for (const element of document.querySelectorAll("body *:not(svg, svg *)")) {
    const own = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim() !== "");
    if (!own || element.getClientRects().length === 0) continue;
    const [light, dark] = [parse(getComputedStyle(element).color), behind(element)].map(luminance).sort((a, b) => b - a);
    const contrast = (light + 0.05) / (dark + 0.05);
    if (contrast < 4.5) wrong.push(`${contrast.toFixed(1)}: ${element.textContent.trim().slice(0, 60)}`);
  }
  return wrong;
}
