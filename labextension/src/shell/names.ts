/** The names under which somebody who knows only that jdist is installed finds it. */

import { TranslationBundle } from '@jupyterlab/translation';

/** The category of all commands in the palette, whose search looks at it as well: each word is one that somebody may type. */
export function paletteCategory(trans: TranslationBundle): string {
  return trans.__('Distributed PyTorch: clusters and ranks (jdist)');
}

/** The tooltip of the panel's icon in the side bar. */
export function panelCaption(trans: TranslationBundle): string {
  return trans.__('Distributed PyTorch clusters (jdist)');
}
