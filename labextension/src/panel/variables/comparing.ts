/** A comparison of a variable's contents on all ranks, which outlives the lists of variables that come after it. */
export class Comparison {
  /** `lists` counts the lists of variables that had been requested when the comparison began. */
  constructor(private readonly _lists: number) {}

  /** What the ranks have answered; empty as long as they have not, or if they cannot. */
  text = '';
  /** Why there is no answer. */
  problem = '';
  /** Whether the ranks may have run code since it began. */
  isOld = false;

  /** Whether the answer is still to come. */
  get isPending(): boolean {
    return !this.text && !this.problem;
  }

  /** Notes that a list has arrived, the `number`th to be requested: each is requested because code has been run. */
  listArrived(number: number): void {
    this.isOld ||= number > this._lists;
  }
}
