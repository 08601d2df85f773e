// Numbers and names as people read them.
const money0 = new Intl.NumberFormat('en-US', { maximumFractionDigits: 0 });

export function dollars(value: number): string {
  const size = Math.abs(value);
  const sign = value < 0 ? '−' : '';
  if (size >= 1e6) return `${sign}$${(size / 1e6).toFixed(2)}M`;
  if (size >= 1e4) return `${sign}$${(size / 1e3).toFixed(1)}k`;
  return `${sign}$${money0.format(size)}`;
}
export const whole = (value: number): string => money0.format(value).replace('-', '−');
export const percent = (value: number, digits = 0): string => `${(100 * value).toFixed(digits)}%`;
export const signed = (value: number, digits = 2): string => `${value < 0 ? '−' : '+'}${Math.abs(value).toFixed(digits)}`;
/** As `signed`, and 0 for what rounds to it. */
export const paid = (value: number, digits = 2): string => (Math.abs(value) < 0.5 * 10 ** -digits ? '0' : signed(value, digits));
export const fixed = (value: number, digits = 2): string => value.toFixed(digits).replace('-', '−');

export function bytes(value: number): string {
  if (value >= 1e9) return `${(value / 1e9).toFixed(1)} GB`;
  if (value >= 1e6) return `${(value / 1e6).toFixed(1)} MB`;
  return `${Math.max(1, Math.round(value / 1e3))} kB`;
}

/** Actions whose words have capitals or signs of their own. */
const SPELLED: Readonly<Record<string, string>> = { SET_OKRS: 'Set OKRs', REVIEW_PR: 'Review PR', A_B_TEST: 'A/B test' };

/** RUN_DEMO -> Run demo */
export const words = (action: string): string => {
  // A target may follow the action's name.
  const [name = '', ...rest] = action.split(' ');
  if (Object.hasOwn(SPELLED, name)) return [SPELLED[name], ...rest].join(' ');
  const text = action.replaceAll('_', ' ').toLowerCase();
  return text.charAt(0).toUpperCase() + text.slice(1);
};

/** A reply in short: action, target and parameters; the text itself where it is no JSON. */
export function replyTitle(text: string): string {
  try {
    const fields = JSON.parse(text) as { action_type?: string; target?: string; parameters?: Record<string, unknown> };
    return [fields.action_type, fields.target, ...Object.values(fields.parameters ?? {})].filter(Boolean).join(' ');
  } catch {
    return text;
  }
}

/** The button that plays the first `count` replies: of `legal` actions, or of a player (null). */
export const trying = (count: number, legal: number | null): string =>
  legal === null ? `Try ${count} replies` : count < legal ? `Try ${count} of ${legal} actions` : `Try all ${legal} actions`;

/** A text up to its first full stop. */
export const firstSentence = (text: string): string => /^.*?\.(?=\s|$)/.exec(text)?.[0] ?? text;

/** Significant digits without an exponent where one can do without. */
export function compact(value: number | null | undefined): string {
  if (value === null || value === undefined || Number.isNaN(value)) return '–';
  if (value === 0) return '0';
  const size = Math.abs(value);
  if (size >= 1e9 || size < 1e-4) return value.toExponential(1).replace('-', '−');
  if (size >= 1e3) return whole(value);
  return String(Number(value.toPrecision(4))).replace('-', '−');
}

/** A time in the unit people would choose. */
export function duration(seconds: number): string {
  if (seconds < 100) return `${Math.round(seconds)} s`;
  if (seconds < 6000) return `${Math.round(seconds / 60)} min`;
  return seconds < 172_800 ? `${(seconds / 3600).toFixed(1)} h` : `${(seconds / 86_400).toFixed(1)} days`;
}
