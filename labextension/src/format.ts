/** Numbers as people read them, as in jdist/core/quantities.py: times, sizes, shares and sets of ranks. */

/** A time that is counted up: `3 s`, `2 min 5 s`, `1 h 4 min`. */
export function formatWholeSeconds(seconds: number): string {
  const whole = Math.floor(seconds);
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60];
  return hours ? `${hours} h ${minutes} min` : minutes ? `${minutes} min ${whole % 60} s` : `${whole} s`;
}

/** How long ago something was: `12 s`, `3 min`, `2 h 5 min`. */
export function formatAge(seconds: number): string {
  const whole = Math.floor(Math.max(0, seconds));
  const minutes = Math.floor(whole / 60);
  const hours = Math.floor(minutes / 60);
  return hours ? `${hours} h ${minutes % 60} min` : minutes ? `${minutes} min` : `${whole} s`;
}

/** A time that people wait: `31 ms`, `0.25 s`, `1.5 s`, `12 s`, `2 min 5 s`. */
export function formatDuration(seconds: number): string {
  if (seconds < 0.1) {
    return `${Math.round(seconds * 1000)} ms`;
  }
  return seconds < 10 ? `${seconds.toFixed(seconds < 1 ? 2 : 1)} s` : formatWholeSeconds(seconds);
}

/** A time that was measured, in at most three digits: `1.23 s`, `45.6 ms`, `120 µs`, `0`. */
export function formatInterval(seconds: number): string {
  const three = (value: number): string => String(Number(value.toPrecision(3)));
  const size = Math.abs(seconds);
  if (size < 5e-7) {
    return '0';
  }
  if (size < 9.995e-4) {
    return `${three(seconds * 1e6)} µs`;
  }
  if (size < 0.9995) {
    return `${three(seconds * 1e3)} ms`;
  }
  return size < 999.5 ? `${three(seconds)} s` : `${Math.round(seconds).toLocaleString('en')} s`;
}

/** `212 MiB`, `1.4 GiB`. */
export function formatMemory(count: number): string {
  const mebi = Math.round(count / 2 ** 20);
  return mebi < 1024 ? `${mebi} MiB` : `${(count / 2 ** 30).toFixed(1)} GiB`;
}

/** A size of memory that may be small: `64 B`, `1.5 KiB`, `212 MiB`. */
export function formatBytes(count: number): string {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let [size, at] = [count, 0];
  while (size >= 1023.5 && at + 1 < units.length) {
    size /= 1024;
    at += 1;
  }
  return `${Number(size.toPrecision(size < 1000 ? 3 : 4))} ${units[at]}`;
}

/** Bytes a second: `0 B/s`, `1.5 kB/s`, `112 MB/s`. */
export function formatRate(rate: number): string {
  const units = ['B/s', 'kB/s', 'MB/s', 'GB/s', 'TB/s'];
  let [size, at] = [rate, 0];
  while (size >= 999.5 && at + 1 < units.length) {
    size /= 1000;
    at += 1;
  }
  return `${Number(size.toPrecision(3))} ${units[at]}`;
}

/** `1.2 / 141 GiB`. */
export function formatPartOfMemory(part: number, whole: number): string {
  return `${(part / 2 ** 30).toFixed(1)} / ${Math.round(whole / 2 ** 30)} GiB`;
}

/** A share of 0 to 1: `90 %`; empty if it is not known. */
export function formatShare(share: number | null | undefined): string {
  return typeof share === 'number' ? `${Math.round(share * 100)} %` : '';
}

/** Ranks as a user writes them: `0-2,5`. */
export function formatRanks(ranks: number[]): string {
  const sorted = [...new Set(ranks)].sort((a, b) => a - b);
  const parts: string[] = [];
  for (let i = 0; i < sorted.length;) {
    let end = i;
    while (end + 1 < sorted.length && sorted[end + 1] === sorted[end] + 1) {
      end += 1;
    }
    parts.push(end === i ? `${sorted[i]}` : `${sorted[i]}-${sorted[end]}`);
    i = end + 1;
  }
  return parts.join(',');
}

/** The numbers of `0-3,7`. */
export function parseRanks(ranks: string): number[] {
  return ranks
    .split(',')
    .filter(Boolean)
    .flatMap(part => {
      const [first, last] = part.split('-').map(Number);
      return Array.from({ length: (last ?? first) - first + 1 }, (_, i) => first + i);
    });
}

/** Whether `0-3,7,9-` contains the rank; a span without an end has all further ranks. */
export function includesRank(ranks: string, rank: number): boolean {
  return ranks.split(',').some(part => {
    const [first, last] = part.split('-');
    return first !== '' && rank >= Number(first) && rank <= Number(last === undefined ? first : last || Infinity);
  });
}

/** The parts that are not empty, separated by dots: `4 ranks · 2 nodes`. */
export function joinParts(...parts: string[]): string {
  return parts.filter(part => part).join(' · ');
}
