// The first visit: a company of scripted players begins by itself, with four captions; any other one waits.
import { api, assert, becomes, run } from './lib.mjs';

const ROLES = ['ceo', 'dev', 'marketing', 'sales', 'content', 'hr'];
const seats = Object.fromEntries(ROLES.map((role) => [role, 'heuristic']));
const found = (more = {}) => api('reset', { days: 4, seed: 1003, pace_s: 0.5, playing: false, seats, ...more });
const length = async () => (await api('config')).worlds[0].length;

await run(async (open) => {
  const kept = (page) => page.evaluate(() => localStorage.getItem('onthejob-tour'));
  // A person's seat, a moment of the address, and an episode of a run.
  await found({ human: 'sales' });
  const [first] = await api('runs/office/episodes');
  const episode = `run=office&it=${first.iteration}&ep=${encodeURIComponent(first.name)}`;
  for (const hash of ['/office', '/office?turn=0', `/office?${episode}`]) {
    if (hash !== '/office') await found();
    const page = await open(hash);
    await becomes(() => kept(page), 'over');
    assert.equal(await page.locator('.tour').count(), 0, hash);
    assert.equal((await api('config')).worlds[0].playing, false, hash);
    await page.context().close();
  }
  // A reader who wants no motion sees the same captions, and begins the play by hand.
  const calm = await open('/office', { reducedMotion: 'reduce' });
  await calm.getByText('1 of 4').waitFor();
  assert.equal((await api('config')).worlds[0].playing, false);
  await calm.context().close();

  const page = await open('/office');
  await page.getByText('1 of 4').waitFor();
  await becomes(async () => (await length()) > 3, true);
  const { playing, pace_s } = (await api('config')).worlds[0];
  assert.deepEqual({ playing, pace_s }, { playing: true, pace_s: 0.5 });
  await page.getByRole('button', { name: 'Next', exact: true }).click();
  await page.getByText('2 of 4').waitFor();
  if (process.env.PICTURES) await page.screenshot({ path: `${process.env.PICTURES}/visit.png` });
  // What was read stays read; what was skipped does not come back, and nothing begins a second time.
  await page.reload();
  await page.getByText('2 of 4').waitFor();
  await page.getByRole('button', { name: 'Skip' }).click();
  await becomes(() => page.locator('.tour').count(), 0);
  await found();
  await page.reload();
  await page.locator('.stage[data-ready=true]').waitFor();
  await page.waitForTimeout(1500);
  assert.equal(await page.locator('.tour').count(), 0);
  assert.equal((await api('config')).worlds[0].playing, false);
});
