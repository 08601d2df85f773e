// A stage that shows a moment at rest is not drawn: no call of the GPU, and hardly any of the processor's time.
import { assert, becomes, played, run } from './lib.mjs';

await played();
const SECONDS = 5;
await run(async (open) => {
  const page = await open('/runs');
  await page.addInitScript(() => {
    window.drawn = 0;
    for (const kind of [WebGLRenderingContext, WebGL2RenderingContext])
      for (const name of ['drawElements', 'drawArrays', 'clear']) {
        const before = kind.prototype[name];
        kind.prototype[name] = function (...given) {
          window.drawn += 1;
          return before.apply(this, given);
        };
      }
  });
  const browser = await page.context().browser().newBrowserCDPSession();
  /** Seconds of all of Chromium's processes, the GPU's software included. */
  const spent = async () =>
    (await browser.send('SystemInfo.getProcessInfo')).processInfo.reduce((sum, { cpuTime }) => sum + cpuTime, 0);
  const drawn = () => page.evaluate(() => window.drawn);
  const over = async () => {
    const [before, begun] = [await drawn(), await spent()];
    await page.waitForTimeout(SECONDS * 1000);
    return { drawn: (await drawn()) - before, cores: ((await spent()) - begun) / SECONDS };
  };
  /** A frame in 3D takes seconds where the machine has no GPU and others are at work. */
  const settled = () =>
    becomes(async () => {
      const before = await drawn();
      await page.waitForTimeout(6000);
      return (await drawn()) === before;
    }, true);
  const found = {};
  for (const kind of ['2d', '3d']) {
    await page.addInitScript((value) => localStorage.setItem('onthejob-stage', value), kind);
    await page.goto(page.url().replace(/#.*/, '#/office?turn=31&role=dev'));
    await page.reload();
    await page.locator('.stage[data-ready=true] canvas').waitFor();
    await becomes(async () => (await drawn()) > 0, true);
    // What was just shown is acted out, then all people are where they should be.
    await settled();
    const rest = await over();
    assert.equal(rest.drawn, 0, `${kind}: drawn ${rest.drawn} times at rest`);
    found[kind] = Number(rest.cores.toFixed(3));
    // A choice is drawn, and so are a few turns that are played; then it rests again.
    const before = await drawn();
    await page.locator('body').press('6');
    await becomes(async () => (await drawn()) > before, true);
    await page.locator('body').press('ArrowRight');
    await settled();
  }
  console.log(`cores at rest: ${JSON.stringify(found)}`);
  assert.ok(found['2d'] <= 0.1, `the 2D office at rest takes ${found['2d']} of a core`);
});
