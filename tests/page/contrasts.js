// Returns [element, what, contrast] of every visible text, placeholder and edge of a control, as WCAG 2 defines contrast.
() => {
  const parse = (color) => color.match(/[\d.]+/g).map(Number);
  const linear = (value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const luminance = (color) => {
    const [r, g, b] = color.slice(0, 3).map((each) => linear(each / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (color, background) => {
    const [low, high] = [parse(color), background].map(luminance).sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const behind = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const color = parse(getComputedStyle(each).backgroundColor);
      if (color[3] !== 0) return color;
    }
    return [255, 255, 255];
  };
  const hasText = (element) => [...element.childNodes].some((each) => each.nodeType === Node.TEXT_NODE && each.data.trim());
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    if (!element.checkVisibility() || element.disabled) continue;
    const add = (what, color, background) => found.push([element.outerHTML.slice(0, 80), what, contrast(color, background)]);
    const isControl = element.matches("button, select, textarea, input:not([type=radio])"), style = getComputedStyle(element);
    if (isControl || hasText(element)) add("text", style.color, behind(element));
    if (element.placeholder) add("placeholder", getComputedStyle(element, "::placeholder").color, behind(element));
    if (isControl && element.type !== "file") add("edge", style.borderTopColor, behind(element.parentElement));
  }
  return found;
}
