/** What a person can set in JupyterLab's settings editor, as schema/plugin.json describes it. */

import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { ISignal, Signal } from '@lumino/signaling';

import { IPreferences, IPreferenceValues } from './tokens';

/** The schema is that of the panel's plugin, which has the shortcuts and menus as well. */
const SCHEMA = 'jdist:plugin';

/** The schema's defaults, for front ends without settings and until the settings have been loaded. */
export const DEFAULTS: IPreferenceValues = {
  showStatus: true,
  notifyHangs: true,
  notifyEvents: true,
  notifyClusters: false,
  showCellMarks: true,
  maxRankTabs: 8,
  maxRankLines: 8,
  maxOutputLines: 60,
  refreshSeconds: 1
};

/** The settings as they are now. JupyterLab checks them against the schema and fills in the defaults. */
export class Preferences implements IPreferences {
  get values(): IPreferenceValues {
    return this._values;
  }

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Follows the settings from now on. */
  async follow(registry: ISettingRegistry): Promise<void> {
    const settings = await registry.load(SCHEMA);
    settings.changed.connect(() => this.set(settings.composite));
    this.set(settings.composite);
  }

  /** Replaces all values; those that are missing have their defaults. */
  set(values: object): void {
    this._values = { ...DEFAULTS, ...values };
    this._changed.emit();
  }

  private _values = DEFAULTS;
  private readonly _changed = new Signal<this, void>(this);
}
