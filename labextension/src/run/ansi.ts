/** Text with ANSI colours as DOM nodes, in the theme's own colours. All other sequences are dropped. */

const SEQUENCE =
  // eslint-disable-next-line no-control-regex
  /\x1b\[([0-?]*)[ -/]*([@-~])|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b[ -/]+[0-~]|\x1b[0-Z\\`-~]/g;
// eslint-disable-next-line no-control-regex
const CONTROL = /[\x00-\x08\x0b-\x1f\x7f-\x9f]/g;
const NAMES = ['black', 'red', 'green', 'yellow', 'blue', 'magenta', 'cyan', 'white'];

interface IStyle {
  fg: string;
  bg: string;
  bold: boolean;
}

const PLAIN: IStyle = { fg: '', bg: '', bold: false };

/** Appends the text to the node, in spans where it has colours. */
export function writeAnsi(node: HTMLElement, text: string): void {
  let style = PLAIN;
  let last = 0;
  for (const match of text.matchAll(SEQUENCE)) {
    write(node, text.slice(last, match.index), style);
    last = match.index + match[0].length;
    if (match[2] === 'm') {
      style = after(style, match[1]);
    }
  }
  write(node, text.slice(last), style);
}

function write(node: HTMLElement, text: string, style: IStyle): void {
  const shown = text.replace(CONTROL, '');
  if (!shown) {
    return;
  }
  if (style === PLAIN) {
    node.append(shown);
    return;
  }
  const span = document.createElement('span');
  span.textContent = shown;
  paint(span, style.fg, 'fg');
  paint(span, style.bg, 'bg');
  span.classList.toggle('ansi-bold', style.bold);
  node.append(span);
}

/** Sixteen colours are the theme's; others are what they are. */
function paint(span: HTMLElement, colour: string, where: 'fg' | 'bg'): void {
  if (colour.startsWith('#') || colour.startsWith('rgb')) {
    span.style[where === 'fg' ? 'color' : 'backgroundColor'] = colour;
  } else if (colour) {
    span.classList.add(`ansi-${colour}-${where}`);
  }
}

function after(style: IStyle, args: string): IStyle {
  const codes = args.replace(/:/g, ';').split(';').map(Number);
  let found = style;
  for (let i = 0; i < codes.length; i++) {
    const code = codes[i];
    if (code === 38 || code === 48) {
      const [used, colour] = extended(codes.slice(i + 1));
      found = code === 38 ? { ...found, fg: colour } : { ...found, bg: colour };
      i += used;
    } else {
      found = afterOne(found, code);
    }
  }
  return found;
}

function afterOne(style: IStyle, code: number): IStyle {
  if (!code) {
    return PLAIN;
  }
  if (code === 1 || code === 22) {
    return { ...style, bold: code === 1 };
  }
  if (code === 39 || code === 49) {
    return code === 39 ? { ...style, fg: '' } : { ...style, bg: '' };
  }
  const [base, name] = [Math.floor(code / 10) * 10, NAMES[code % 10]];
  if (!name || ![30, 40, 90, 100].includes(base)) {
    return style;
  }
  const colour = base >= 90 ? `${name}-intense` : name;
  return base === 30 || base === 90 ? { ...style, fg: colour } : { ...style, bg: colour };
}

/** `5;n` and `2;r;g;b`: how many parameters they take, and the colour. */
function extended(codes: number[]): [number, string] {
  if (codes[0] === 2) {
    return [
      4,
      `rgb(${codes
        .slice(1, 4)
        .map(c => Math.min(255, c || 0))
        .join(',')})`
    ];
  }
  const n = codes[1] || 0;
  if (n < 16) {
    return [2, NAMES[n % 8] + (n < 8 ? '' : '-intense')];
  }
  if (n >= 232) {
    const grey = 8 + 10 * (n - 232);
    return [2, `rgb(${grey},${grey},${grey})`];
  }
  const level = (part: number): number => (part ? 55 + 40 * part : 0);
  const at = n - 16;
  return [2, `rgb(${level(Math.floor(at / 36))},${level(Math.floor(at / 6) % 6)},${level(at % 6)})`];
}
