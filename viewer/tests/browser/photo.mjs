// `p` leaves the office, what happened and the value, and nothing to press; `p` or Esc brings the controls back. In 3D no corner is cut.
import { api, assert, becomes, played, run } from './lib.mjs';

await played();
const { frames } = await api('state');
await run(async (open) => {
  for (const stage of ['2d', '3d']) {
    const page = await open('/office?lowfx', { stage });
    const slider = page.getByRole('slider', { name: 'Turn', exact: true });
    await page.locator('.stage[data-ready=true] canvas').waitFor();
    await becomes(() => slider.getAttribute('max'), String(frames.length - 1));
    const frame = frames.find((one) => one.actor === 'dev' && one.phase === 'execution');
    await slider.fill(String(frame.seq));
    const head = page.getByRole('navigation', { name: 'Pages' });
    const caption = page.locator('.caption');
    const wide = () => page.locator('.scene').evaluate((scene) => scene.clientWidth);
    const before = await wide();
    await page.locator('body').press('p');
    await caption.getByText(`Day ${frame.day + 1}, execution`).waitFor();
    await caption.getByText(/^company value \$[\d.]+k$/).waitFor();
    for (const control of [head, slider, page.getByRole('button', { name: '2D', exact: true })])
      assert.equal(await control.isVisible(), false);
    assert.ok((await wide()) > before, 'the picture does not take the room of what was hidden');
    // The canvas follows, and every room's name is inside.
    const [width, height] = await page.locator('.scene').evaluate(({ clientWidth, clientHeight }) => [clientWidth, clientHeight]);
    const inside = () =>
      page.locator('.roomname').evaluateAll(
        (names, [w, h]) =>
          names.every((name) => {
            const { e, f } = new DOMMatrix(getComputedStyle(name).transform);
            return e > 0 && e < w && f > h / 5 && f < h;
          }),
        [width, height],
      );
    await becomes(inside, true);
    await becomes(() => page.locator('.stage canvas').evaluate((canvas) => canvas.clientWidth), width);
    if (process.env.PICTURES) {
      await page.waitForTimeout(2500);
      await page.screenshot({ path: `${process.env.PICTURES}/photo-${stage}.png` });
    }
    await page.locator('body').press('Escape');
    await head.waitFor();
    await page.locator('body').press('p');
    await caption.click();
    await head.waitFor();
    assert.equal(await caption.count(), 0);
    if (process.env.PICTURES) {
      await page.waitForTimeout(2500);
      await page.screenshot({ path: `${process.env.PICTURES}/after-${stage}.png` });
    }
    await page.context().close();
  }
});
