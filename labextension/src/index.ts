import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';

import { cellProgress } from './cells/plugin';
import { rankMarks } from './cells/rankmarks';
import { Clusters } from './clusters';
import { panel } from './panel/plugin';
import { runOutput } from './run/plugin';
import { launcherCard } from './shell/launcher';
import { timeline } from './timeline/plugin';
import { IClusters } from './tokens';
import { toolbar } from './toolbar/plugin';

const clusters: JupyterFrontEndPlugin<IClusters> = {
  id: 'jdist:clusters',
  description: "This user's clusters, as the server reports them.",
  autoStart: true,
  provides: IClusters,
  activate: (app: JupyterFrontEnd) => new Clusters(app.serviceManager)
};

export default [clusters, panel, launcherCard, cellProgress, rankMarks, runOutput, timeline, toolbar];
