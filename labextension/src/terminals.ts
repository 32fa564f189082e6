/** Terminals of the Jupyter server, each in a tab of its own, in which a command is run. */

import { JupyterFrontEnd } from '@jupyterlab/application';
import { Terminal } from '@jupyterlab/services';

/** Of Lab's own terminals: shows the one called `name`. */
const OPEN = 'terminal:open';
/** Milliseconds within which a shell shows its prompt. */
const WITHIN = 30000;

export class Terminals {
  constructor(private readonly _app: JupyterFrontEnd) {}

  /** Whether the server has terminals and this page can show them. */
  get areAvailable(): boolean {
    return this._app.serviceManager.terminals.isAvailable() && this._app.commands.hasCommand(OPEN);
  }

  /**
   * Opens one called `name`, or much like it, and types the command, as a person would: it goes through the terminal's
   * own connection. Rejects if the server refuses, or no shell is there in time.
   */
  async run(name: string, command: string): Promise<void> {
    const { terminals } = this._app.serviceManager;
    await terminals.refreshRunning();
    const taken = [...terminals.running()].map(each => each.name);
    const session = await terminals.startNew({ name: free(name, taken) });
    try {
      await Promise.all([said(session), this._app.commands.execute(OPEN, { name: session.name })]);
      session.send({ type: 'stdin', content: [`${command}\r`] });
    } finally {
      session.dispose(); // the tab has a connection of its own
    }
  }
}

/** Once the shell has written something: what is typed earlier is shown twice. */
function said(session: Terminal.ITerminalConnection): Promise<void> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error('the terminal shows no prompt')), WITHIN);
    session.messageReceived.connect((_, message) => {
      if (message.type === 'stdout') {
        clearTimeout(timer);
        resolve();
      }
    });
  });
}

/** The name with nothing in it that a terminal's may not have, and a number behind it if it is taken. */
function free(name: string, taken: string[]): string {
  const plain = name.replace(/\W+/g, '_');
  let found = plain;
  for (let i = 2; taken.includes(found); i++) {
    found = `${plain}_${i}`;
  }
  return found;
}
