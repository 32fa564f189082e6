/** Tabs: where what has a title of its own is shown. */

import { ILabShell, JupyterFrontEnd } from '@jupyterlab/application';
import { MessageLoop } from '@lumino/messaging';
import { SplitPanel, TabPanel, Widget } from '@lumino/widgets';

/** Of the height, for what stands below the notebook. */
const SHARE = 0.4;
/** Pixels of height in which nothing but a title can be seen. */
const LOW = 100;

/** In JupyterLab's main area; in Notebook 7, where that holds the notebook and nothing else, in the one below it. */
export class Tabs {
  constructor(
    private readonly _shell: JupyterFrontEnd.IShell,
    private readonly _lab: ILabShell | null
  ) {}

  add(widget: Widget, options?: { mode: 'split-bottom' }): void {
    this._shell.add(widget, this._lab ? 'main' : 'down', options);
  }

  /** Brings one to the front that has been added. */
  activate(widget: Widget): void {
    this._shell.activateById(widget.id);
    const panel = widget.parent?.parent;
    if (panel instanceof TabPanel) {
      panel.currentWidget = widget; // which Notebook's shell leaves to us, as it does the area's height
      give(panel, SHARE);
    }
  }
}

/** Gives a share of the room to a part of a split panel that has next to none. */
function give(part: Widget, share: number): void {
  MessageLoop.flush(); // until the layout has taken notice, a height says nothing
  const split = part.parent;
  if (split instanceof SplitPanel && part.node.clientHeight < LOW) {
    const others = (1 - share) / (split.widgets.filter(each => !each.isHidden).length - 1 || 1);
    split.setRelativeSizes(split.widgets.map(each => (each === part ? share : each.isHidden ? 0 : others)));
  }
}
