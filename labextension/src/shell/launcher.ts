/** The plugin of the card in JupyterLab's launcher. */

import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ILauncher } from '@jupyterlab/launcher';
import { ITranslator, nullTranslator } from '@jupyterlab/translation';

import { CommandIDs } from '../tokens';

/** Notebook 7 has no launcher. */
export const launcherCard: JupyterFrontEndPlugin<void> = {
  id: 'jdist:launcher',
  description: 'A card in the launcher that starts a cluster.',
  autoStart: true,
  optional: [ILauncher, ITranslator],
  activate: (_: JupyterFrontEnd, launcher: ILauncher | null, translator: ITranslator | null) => {
    const trans = (translator ?? nullTranslator).load('jdist');
    launcher?.add({ command: CommandIDs.start, args: { isLauncher: true }, category: trans.__('Distributed PyTorch') });
  }
};
