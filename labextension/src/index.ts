import { JupyterFrontEnd, JupyterFrontEndPlugin } from '@jupyterlab/application';
import { ISettingRegistry } from '@jupyterlab/settingregistry';

import { cellProgress } from './cells/plugin';
import { rankMarks } from './cells/rankmarks';
import { charts } from './charts/plugin';
import { Clusters } from './clusters';
import { metrics } from './metrics/plugin';
import { panel } from './panel/plugin';
import { Preferences } from './preferences';
import { runOutput } from './run/plugin';
import { launcherCard } from './shell/launcher';
import { timeline } from './timeline/plugin';
import { IClusters, IPreferences } from './tokens';
import { toolbar } from './toolbar/plugin';

const clusters: JupyterFrontEndPlugin<IClusters> = {
  id: 'jdist:clusters',
  description: "This user's clusters, as the server reports them.",
  autoStart: true,
  provides: IClusters,
  activate: (app: JupyterFrontEnd) => new Clusters(app.serviceManager)
};

const preferences: JupyterFrontEndPlugin<IPreferences> = {
  id: 'jdist:preferences',
  description: 'What the user has set.',
  autoStart: true,
  optional: [ISettingRegistry],
  provides: IPreferences,
  activate: (_: JupyterFrontEnd, settings: ISettingRegistry | null) => {
    const preferences = new Preferences();
    if (settings) {
      void preferences.follow(settings);
    }
    return preferences;
  }
};

export default [
  clusters,
  preferences,
  panel,
  launcherCard,
  cellProgress,
  rankMarks,
  runOutput,
  charts,
  metrics,
  timeline,
  toolbar
];
