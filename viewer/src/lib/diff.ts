// Lines of a unified diff: what each does, for those who see colours and for those who do not.

export type LineKind = 'added' | 'removed' | 'place' | 'remark' | 'same';

const KINDS: Record<string, LineKind> = { '+': 'added', '-': 'removed', '@': 'place', '\\': 'remark' };

/** What a line of a diff does, by its first character. */
export const kindOf = (line: string): LineKind => KINDS[line[0] ?? ''] ?? 'same';

/** How many lines were added and removed. */
export function counts(lines: readonly string[]): { added: number; removed: number } {
  const of = (kind: LineKind): number => lines.filter((line) => kindOf(line) === kind).length;
  return { added: of('added'), removed: of('removed') };
}

/** The same in words, e.g. `+3 −1`; of a diff that is shown in part, at least as many. */
export function summary(lines: readonly string[], further: number): string {
  const { added, removed } = counts(lines);
  const more = further > 0 ? ' or more' : '';
  return [added ? `+${added}` : '', removed ? `−${removed}` : ''].filter(Boolean).join(' ') + more;
}
