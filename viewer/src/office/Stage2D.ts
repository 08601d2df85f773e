// The office in 2D on Phaser. Everything static is baked into one texture; people are placed from the plan of walks each frame.
import type * as PhaserNamespace from 'phaser';
import { ROLES } from '../lib/roles';
import { receivers } from './bubbles';
import { onDemand, type Demand } from './demand';
import { drawChart, drawKanban, drawRack, surface } from './instruments';
import { leavers, LEAVERS } from './happening';
import { bake, H, ITEMS, SEAT_SHIFT, SEATS, W, WAITING, ZONES } from './layout';
import { Motion } from './motion';
import { character, CH, CW, FRAMES, furniture, mk, restingFrame } from './pix';
import type { Stage, StageHost } from './stage';

type PhaserModule = typeof PhaserNamespace;
const SCALE = 2;
const TILE = 32;
const PHASE_TINT: Record<string, number> = {
  standup: 0xffe2a0,
  execution: 0xfff3d0,
  review: 0xffc27a,
  planning: 0x9db4ff,
  night: 0x5f7bd8,
};
const WALK_RATE = 7;
const TYPE_RATE = 5;

interface Person {
  sprite: Phaser.GameObjects.Sprite;
  shadow: Phaser.GameObjects.Image;
}

/** Visitors have looks of their own, drawn once and reused. */
const VISITORS = [
  { skin: 0, hair: [20, 30, 30], shirt: [200, 30, 45], pants: [220, 20, 30], style: 'short' },
  { skin: 3, hair: [20, 20, 14], shirt: [20, 40, 60], pants: [30, 20, 30], style: 'bob' },
  { skin: 2, hair: [45, 60, 60], shirt: [150, 25, 42], pants: [230, 20, 30], style: 'long' },
  { skin: 1, hair: [280, 10, 20], shirt: [280, 18, 50], pants: [24, 20, 30], style: 'spiky' },
] as const;

export async function createStage2D(parent: HTMLElement, host: StageHost, gone: () => boolean): Promise<Stage | null> {
  const module = await import('phaser');
  const P = ((module as unknown as { default?: PhaserModule }).default ?? module) as PhaserModule;
  if (gone()) return null;
  let scene: OfficeScene | null = null;
  let demand: Demand | null = null;
  const motion = new Motion();
  /** Phaser draws in every animation frame of the screen; from here on it draws when there is something new to see. */
  const rest = (): void => {
    queueMicrotask(() => {
      if (gone()) return;
      game.loop.stop();
      let before = performance.now();
      demand = onDemand(
        host,
        () => scene?.view() ?? '',
        (now) => {
          game.step(now, Math.min(now - before, 100));
          before = now;
        },
      );
    });
  };

  class OfficeScene extends P.Scene {
    private people: Record<string, Person> = {};
    private visitors: Phaser.GameObjects.Sprite[] = [];
    private leaving: Phaser.GameObjects.Sprite[] = [];
    private lines!: Phaser.GameObjects.Graphics;
    private rings!: Phaser.GameObjects.Graphics;
    private light!: Phaser.GameObjects.Graphics;
    private drawn = '';
    private beat = -1;
    private panels: { pen: CanvasRenderingContext2D; texture: Phaser.Textures.CanvasTexture; kind: string }[] = [];
    free = false;

    constructor() {
      super('office');
    }

    private canvasTexture(key: string, canvas: HTMLCanvasElement): Phaser.Textures.CanvasTexture {
      if (this.textures.exists(key)) this.textures.remove(key);
      const texture = this.textures.addCanvas(key, canvas);
      if (!texture) throw new Error(`texture ${key} could not be made`);
      return texture;
    }

    create(): void {
      this.canvasTexture('floor', bake());
      this.add.image(0, 0, 'floor').setOrigin(0).setScale(SCALE).setDepth(-1000);
      for (const [key, canvas] of Object.entries(furniture())) this.canvasTexture(`f_${key}`, canvas);
      const [shade, pen] = mk(16, 6);
      pen.fillStyle = 'rgba(18,10,34,.42)';
      pen.beginPath();
      pen.ellipse(8, 3, 7, 2.6, 0, 0, 7);
      pen.fill();
      this.canvasTexture('shadow', shade);
      this.furnish();
      this.light = this.add.graphics().setDepth(-650).setBlendMode(P.BlendModes.ADD);
      this.lines = this.add.graphics().setDepth(9000);
      this.rings = this.add.graphics().setDepth(-590);
      for (const role of ROLES) this.hire(role.id, role.look);
      VISITORS.forEach((look, index) => this.sheet(`v${index}`, look));
      WAITING.forEach(([x, y], index) => {
        const sprite = this.add.sprite((x + 0.5) * TILE, (y + 0.9) * TILE, `c_v${index % VISITORS.length}`, 'down0');
        this.visitors.push(
          sprite
            .setOrigin(0.5, 1)
            .setScale(SCALE)
            .setDepth((y + 0.9) * TILE)
            .setVisible(false),
        );
      });
      for (let index = 0; index < LEAVERS; index++)
        this.leaving.push(this.add.sprite(0, 0, 'c_v0', 'down0').setOrigin(0.5, 1).setScale(SCALE).setVisible(false));
      this.look();
      this.scale.on('resize', () => {
        if (!this.free) this.fit();
        demand?.poke();
      });
      this.fit();
      // Each frame is drawn from timeline time: nothing here keeps time of its own.
      scene = this;
      rest();
    }

    /** What the picture depends on besides the company. */
    view(): string {
      const { scrollX, scrollY, zoom } = this.cameras.main;
      return `${scrollX.toFixed(1)} ${scrollY.toFixed(1)} ${zoom.toFixed(4)} ${this.scale.width} ${this.scale.height}`;
    }

    private furnish(): void {
      const instruments: Record<string, { kind: 'chart' | 'kanban' | 'rack'; x: number; y: number }[]> = {};
      ITEMS.forEach((item, index) => {
        const kind = item.k === 'chart' ? 'chart' : item.k === 'board' ? 'kanban' : item.k === 'rack' ? 'rack' : null;
        let key = `f_${item.k}`;
        if (kind) {
          const [canvas, pen] = surface(kind);
          key = `i_${index}`;
          const name = kind === 'chart' && index % 2 ? 'pipeline' : kind;
          this.panels.push({ pen, texture: this.canvasTexture(key, canvas), kind: name });
          (instruments[kind] ??= []).push({ kind, x: item.x, y: item.y });
        }
        const image = this.add
          .image(item.x * TILE, item.y * TILE, key)
          .setOrigin(0.5, item.flat ? 0.5 : 1)
          .setScale(SCALE);
        image.setDepth(item.flat ? -900 : item.onWall ? -800 : item.y * TILE);
        if (item.flat || item.onWall) return;
        this.add
          .image(item.x * TILE, item.y * TILE - 4, 'shadow')
          .setScale((image.width / 16) * 2.1, 3.2)
          .setDepth(-700)
          .setAlpha(0.8);
      });
      for (const [role, [x, y]] of Object.entries(SEATS)) {
        if (role === 'customer') continue;
        this.add
          .image((x + 0.5 + (SEAT_SHIFT[role] ?? 0)) * TILE, (y + 1.25) * TILE, 'f_chair')
          .setOrigin(0.5, 1)
          .setScale(SCALE)
          .setDepth((y + 0.9) * TILE - 2);
      }
    }

    private sheet(id: string, look: Parameters<typeof character>[0]): void {
      const texture = this.canvasTexture(`c_${id}`, character(look));
      FRAMES.forEach((frame, index) => texture.add(frame, 0, index * CW, 0, CW, CH));
    }

    private hire(id: string, look: Parameters<typeof character>[0]): void {
      this.sheet(id, look);
      const shadow = this.add.image(0, 0, 'shadow').setScale(SCALE).setDepth(-600);
      const sprite = this.add.sprite(0, 0, `c_${id}`, 'down0').setOrigin(0.5, 1).setScale(SCALE);
      sprite.setInteractive({ useHandCursor: true });
      sprite.on('pointerdown', () => host.select(id));
      this.people[id] = { sprite, shadow };
    }

    private look(): void {
      const camera = this.cameras.main;
      camera.setBackgroundColor('#14131c');
      this.input.on('wheel', (_pointer: unknown, _over: unknown, _dx: number, dy: number) => this.zoomBy(dy > 0 ? 0.9 : 1.1));
      this.input.addPointer(1);
      let pinch = 0;
      this.input.on('pointermove', (pointer: Phaser.Input.Pointer) => {
        const { pointer1, pointer2 } = this.input;
        if (pointer1?.isDown && pointer2?.isDown) {
          const distance = P.Math.Distance.Between(pointer1.x, pointer1.y, pointer2.x, pointer2.y);
          if (pinch) this.zoomBy(distance / pinch);
          pinch = distance;
          return;
        }
        pinch = 0;
        if (!pointer.isDown) return;
        this.free = true;
        camera.scrollX -= (pointer.x - pointer.prevPosition.x) / camera.zoom;
        camera.scrollY -= (pointer.y - pointer.prevPosition.y) / camera.zoom;
      });
    }

    fit(): void {
      this.free = false;
      const camera = this.cameras.main;
      camera.setZoom(Math.min(this.scale.width / (W * TILE), this.scale.height / (H * TILE)));
      camera.centerOn((W * TILE) / 2, (H * TILE) / 2);
    }

    zoomBy(factor: number): void {
      this.free = true;
      const camera = this.cameras.main;
      camera.setZoom(P.Math.Clamp(camera.zoom * factor, 0.25, 4));
    }

    override update(): void {
      const world = host.world();
      if (!world) return;
      const t = host.time();
      const seq = host.seq();
      const frame = world.frames[seq];
      if (!frame) return;
      motion.follow(world.frames);
      this.rings.clear();
      for (const role of ROLES) this.move(role.id, role.color, t, frame.actor === role.id);
      for (const zone of ZONES) this.caption(zone);
      this.connect(frame, t);
      this.instruments(t, seq);
      const waiting = Math.min(
        WAITING.length,
        world.accounts[seq]?.filter((account) => ['lead', 'qualified'].includes(account.stage)).length ?? 0,
      );
      this.visitors.forEach((visitor, index) => visitor.setVisible(index < waiting));
      this.walkOut(leavers(world.frames, seq, host.calm() ? Math.floor(t) + 0.999 : t), t);
    }

    /** Customers who leave, each with a cloud above. */
    private walkOut(gone: ReturnType<typeof leavers>, t: number): void {
      this.leaving.forEach((sprite, index) => {
        const one = gone[index];
        sprite.setVisible(Boolean(one));
        if (one) {
          const view = one.facing === 'left' || one.facing === 'right' ? 'side' : one.facing;
          const step = host.calm() ? 0 : [1, 0, 2, 0][Math.floor(t * WALK_RATE * 2) % 4]!;
          const y = (one.y + 0.4) * TILE;
          sprite.setTexture(`c_v${one.id % VISITORS.length}`, `${view}${step}`).setFlipX(one.facing === 'left');
          sprite.setPosition(one.x * TILE, y).setDepth(y);
        }
        const at = this.onPage((one?.x ?? 0) * TILE, ((one?.y ?? 0) + 0.4) * TILE);
        host.place(`leaver ${index}`, { ...at, tall: CH * SCALE * this.cameras.main.zoom, hidden: !one });
      });
    }

    private move(id: string, color: string, t: number, acts: boolean): void {
      const person = this.people[id];
      if (!person) return;
      const still = host.calm();
      const pose = motion.pose(id, still ? Math.floor(t) + 0.999 : t);
      const { sprite, shadow } = person;
      const x = pose.x * TILE;
      const y = (pose.y + 0.4) * TILE;
      const turns = still ? 0 : t;
      if (pose.activity === 'WALKING') {
        const view = pose.facing === 'left' || pose.facing === 'right' ? 'side' : pose.facing;
        const step = [1, 0, 2, 0][Math.floor(turns * WALK_RATE * 2) % 4]!;
        sprite.setFrame(`${view}${step}`).setFlipX(pose.facing === 'left');
      } else {
        const beat = still || !acts ? 0 : Math.floor(this.time.now / (1000 / TYPE_RATE)) % 2;
        sprite.setFrame(restingFrame(pose.activity, beat)).setFlipX(false);
      }
      sprite.setPosition(x, y).setDepth(y);
      shadow.setPosition(x, y - 3);
      const chosen = host.selected() === id;
      this.rings.lineStyle(chosen ? 3 : 2, P.Display.Color.HexStringToColor(color).color, acts || chosen ? 1 : 0.55);
      this.rings.strokeEllipse(x, y - 3, acts ? 38 : 30, acts ? 14 : 11);
      host.place(id, { ...this.onPage(x, y), tall: CH * SCALE * this.cameras.main.zoom, hidden: false });
    }

    private caption(zone: (typeof ZONES)[number]): void {
      host.place(`room ${zone.id}`, {
        ...this.onPage((zone.x + zone.w / 2) * TILE, (zone.y + zone.h) * TILE),
        tall: 0,
        hidden: false,
      });
    }

    private onPage(x: number, y: number): { x: number; y: number } {
      const { worldView, zoom } = this.cameras.main;
      return { x: (x - worldView.x) * zoom, y: (y - worldView.y) * zoom };
    }

    /** Dashed arcs from who speaks to who is spoken to. */
    private connect(frame: NonNullable<ReturnType<StageHost['world']>>['frames'][number], t: number): void {
      this.lines.clear();
      const { talk } = frame;
      if (!talk) return;
      const from = this.people[talk.sender]?.sprite;
      if (!from) return;
      const offset = host.calm() ? 0 : (t * 40) % 14;
      this.lines.lineStyle(3, 0x58e0c0, 0.9);
      for (const id of receivers(talk)) {
        const to = this.people[id]?.sprite;
        if (!to) continue;
        const length = Math.hypot(to.x - from.x, to.y - from.y);
        if (length < 8) continue;
        const mx = (from.x + to.x) / 2;
        const my = (from.y + to.y) / 2 - length * 0.22;
        const at = (s: number): [number, number] => [
          (1 - s) ** 2 * from.x + 2 * s * (1 - s) * mx + s * s * to.x,
          (1 - s) ** 2 * (from.y - 26) + 2 * s * (1 - s) * my + s * s * (to.y - 26),
        ];
        for (let s = offset; s < length; s += 14) {
          const [ax, ay] = at(s / length);
          const [bx, by] = at(Math.min(1, (s + 7) / length));
          this.lines.lineBetween(ax, ay, bx, by);
        }
      }
    }

    private instruments(t: number, seq: number): void {
      const world = host.world()!;
      const frame = world.frames[seq]!;
      const beat = host.calm() ? 0 : Math.floor(this.time.now / 400);
      const key = `${world.seats.world} ${world.seats.epoch} ${seq}`;
      const fresh = key !== this.drawn;
      if (!fresh && beat === this.beat) return;
      this.panels.forEach(({ pen, texture, kind }, index) => {
        if (kind === 'rack') drawRack(pen, frame.kpis.stability, index + 3, beat);
        else if (!fresh) return;
        else if (kind === 'kanban') drawKanban(pen, world.features[seq] ?? []);
        else drawChart(pen, world, seq, kind === 'pipeline' ? 'pipeline' : 'mrr', kind === 'pipeline' ? '#5aa2f0' : '#5fd0a8');
        texture.refresh();
      });
      if (fresh) this.shine(frame.phase);
      this.drawn = key;
      this.beat = beat;
      void t;
    }

    /** Light through the windows, tinted by the phase of the day. */
    private shine(phase: string): void {
      this.light.clear();
      this.light.fillStyle(PHASE_TINT[phase] ?? 0xffe2a0, phase === 'planning' ? 0.07 : 0.11);
      for (const item of ITEMS) {
        if (item.k !== 'window') continue;
        const x = item.x * TILE;
        const y = item.y * TILE + 2;
        const points = [
          [x - 26, y],
          [x + 26, y],
          [x + 74, y + 110],
          [x + 6, y + 110],
        ].map(([px, py]) => new P.Math.Vector2(px, py));
        this.light.fillPoints(points, true);
      }
    }
  }

  const game = new P.Game({
    type: P.AUTO,
    parent,
    pixelArt: true,
    backgroundColor: '#14131c',
    banner: false,
    audio: { noAudio: true },
    disableContextMenu: false,
    input: { keyboard: false },
    scale: { mode: P.Scale.RESIZE, width: '100%', height: '100%' },
    scene: OfficeScene,
  });
  // Without steps of its own, Phaser does not look whether its parent has another size.
  const observer = new ResizeObserver(() => {
    if (demand && game.scale.getParentBounds()) game.scale.refresh();
  });
  observer.observe(parent);
  return {
    zoom: (factor) => scene?.zoomBy(factor),
    reset: () => scene?.fit(),
    destroy: () => {
      observer.disconnect();
      demand?.stop();
      game.destroy(true);
      // It is gone with its next step.
      if (demand) game.step(performance.now(), 0);
    },
  };
}
