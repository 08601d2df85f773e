// The office in 3D on react-three-fiber: the same plan, the same looks, the same walks. Own controls and labels; nothing is loaded
// from elsewhere. Shadows and full resolution are given up when frames come too slowly.
import { createRoot, events, extend, useFrame, useThree } from '@react-three/fiber';
import { useEffect, useMemo, useRef } from 'react';
import * as THREE from 'three';
import { OrbitControls } from 'three/addons/controls/OrbitControls.js';
import { RoundedBoxGeometry } from 'three/addons/geometries/RoundedBoxGeometry.js';
import { ROLES, type RoleInfo } from '../lib/roles';
import { drawChart, drawKanban, surface } from './instruments';
import { H, ITEMS, SEAT_SHIFT, SEATS, W, WAITING, wallRectangles, ZONES } from './layout';
import { Motion } from './motion';
import { SKIN } from './pix';
import type { Stage, StageHost } from './stage';

const FLOORS = ['#a97c50', '#5d6f8f', '#94627a', '#56758f', '#7a6a9a', '#64894f', '#d8c8a8', '#454b5e'];
const WALL_HEIGHT = 1.25;
const HEAD = 1.95;
const HOME_CAMERA = new THREE.Vector3(0, 31, 27);
/** Width to height at which the whole office fits from there; narrower stages look from farther away. */
const HOME_ASPECT = 1.55;
/** Frames after which the view decides whether it can afford shadows. */
const PROBE = 30;
const SLOW_MS = 50;

type Hsl = readonly [number, number, number];
const hsl = ([h, s, l]: Hsl, more = 0): string => `hsl(${h}, ${s}%, ${Math.min(96, l + more)}%)`;

function homeFor(canvas: HTMLCanvasElement): THREE.Vector3 {
  const aspect = canvas.clientWidth / Math.max(1, canvas.clientHeight);
  return HOME_CAMERA.clone().multiplyScalar(Math.max(1, Math.min(2.4, HOME_ASPECT / aspect)));
}

interface Shared {
  host: StageHost;
  motion: Motion;
  seatedY: number;
}

function Box({ size, at, color, round = 0.05 }: { size: [number, number, number]; at: [number, number, number]; color: string; round?: number }) {
  const geometry = useMemo(() => new RoundedBoxGeometry(size[0], size[1], size[2], 2, round), [size[0], size[1], size[2], round]);
  useEffect(() => () => geometry.dispose(), [geometry]);
  return (
    <mesh geometry={geometry} position={at} castShadow receiveShadow>
      <meshStandardMaterial color={color} roughness={0.78} />
    </mesh>
  );
}

function Hair({ role }: { role: RoleInfo }) {
  const { look } = role;
  const color = look.style === 'beanie' ? 'hsl(268, 34%, 44%)' : hsl(look.hair);
  const long = look.style === 'long' || look.style === 'bob';
  return (
    <>
      <Box size={[0.52, 0.18, 0.5]} at={[0, 1.74, -0.01]} color={color} />
      {look.style !== 'beanie' && <Box size={[0.52, long ? 0.62 : 0.34, 0.16]} at={[0, long ? 1.44 : 1.58, -0.2]} color={color} />}
      {long && [-0.25, 0.25].map((x) => <Box key={x} size={[0.1, look.style === 'long' ? 0.6 : 0.4, 0.3]} at={[x, look.style === 'long' ? 1.44 : 1.54, -0.06]} color={color} />)}
      {look.style === 'bun' && <Box size={[0.24, 0.2, 0.24]} at={[0, 1.9, -0.06]} color={color} round={0.09} />}
      {look.style === 'spiky' && [-0.15, 0, 0.15].map((x) => <Box key={x} size={[0.1, 0.16, 0.28]} at={[x, 1.86, 0]} color={color} />)}
      {look.style === 'beanie' && <Box size={[0.14, 0.12, 0.14]} at={[0, 1.88, 0]} color="#e8d9ff" round={0.05} />}
      {look.acc === 'headphones' || look.acc === 'headset' ? (
        <>
          {[-0.27, 0.27].map((x) => (
            <Box key={x} size={[0.09, 0.2, 0.2]} at={[x, 1.52, 0]} color="#3c4460" />
          ))}
          <Box size={[0.58, 0.06, 0.08]} at={[0, 1.85, 0]} color="#3c4460" round={0.02} />
        </>
      ) : null}
      {look.acc === 'glasses' &&
        [-0.11, 0.11].map((x) => (
          <mesh key={x} position={[x, 1.52, 0.235]}>
            <torusGeometry args={[0.075, 0.014, 6, 16]} />
            <meshBasicMaterial color="#f4f0ff" />
          </mesh>
        ))}
    </>
  );
}

/** A person of blocks from the same looks as the sprite. */
function Humanoid({ role, shared }: { role: RoleInfo; shared: Shared }) {
  const group = useRef<THREE.Group>(null);
  const body = useRef<THREE.Group>(null);
  const limbs = useRef<Record<string, THREE.Group | null>>({});
  const ring = useRef<THREE.Mesh>(null);
  const point = useMemo(() => new THREE.Vector3(), []);
  const { look } = role;
  const skin = SKIN[look.skin]![0];
  useFrame(({ camera, size }) => {
    const { host, motion } = shared;
    const t = host.time();
    const calm = host.calm();
    const pose = motion.pose(role.id, calm ? Math.floor(t) + 0.999 : t);
    const world = host.world();
    const acts = world?.frames[host.seq()]?.actor === role.id;
    const walking = pose.activity === 'WALKING';
    const seated = pose.activity === 'WORKING';
    const swing = walking ? Math.sin(t * 26) * 0.75 : 0;
    const typing = seated && acts && !calm ? Math.sin(performance.now() / 70) * 0.14 : 0;
    if (group.current) {
      group.current.position.set(pose.x - W / 2, 0, pose.y - H / 2 + 0.25);
      group.current.rotation.y = { down: 0, up: Math.PI, left: -Math.PI / 2, right: Math.PI / 2 }[pose.facing];
    }
    if (body.current) body.current.position.y = seated ? shared.seatedY : walking ? Math.abs(Math.sin(t * 26)) * 0.06 : 0;
    const { la, ra, ll, rl } = limbs.current;
    if (ll) ll.rotation.x = seated ? -1.45 : swing;
    if (rl) rl.rotation.x = seated ? -1.45 : -swing;
    if (la) la.rotation.x = seated ? -1.15 + typing : -swing;
    if (ra) ra.rotation.x = seated ? -1.15 - typing : swing;
    const chosen = host.selected() === role.id;
    if (ring.current) {
      ring.current.scale.setScalar(acts ? 1.35 : chosen ? 1.2 : 1);
      (ring.current.material as THREE.MeshBasicMaterial).opacity = acts || chosen ? 1 : 0.5;
    }
    // The name stands at the feet, as in 2D; the bubble above the head.
    point.set(pose.x - W / 2, 0.05, pose.y - H / 2 + 0.6).project(camera);
    const feet = { x: ((point.x + 1) / 2) * size.width, y: ((1 - point.y) / 2) * size.height, z: point.z };
    point.set(pose.x - W / 2, HEAD, pose.y - H / 2 + 0.25).project(camera);
    host.place(role.id, { x: feet.x, y: feet.y, tall: Math.max(12, feet.y - ((1 - point.y) / 2) * size.height), hidden: feet.z > 1 });
  });
  const limb = (name: string) => (element: THREE.Group | null) => {
    limbs.current[name] = element;
  };
  return (
    <group ref={group} onClick={() => shared.host.select(role.id)}>
      <group ref={body}>
        {(['ll', 'rl'] as const).map((name, index) => (
          <group key={name} ref={limb(name)} position={[index ? 0.14 : -0.14, 0.62, 0]}>
            <Box size={[0.26, 0.6, 0.28]} at={[0, -0.3, 0]} color={hsl(look.pants)} />
            <Box size={[0.27, 0.12, 0.34]} at={[0, -0.57, 0.03]} color="#2e2433" />
          </group>
        ))}
        <Box size={[0.58, 0.62, 0.32]} at={[0, 0.93, 0]} color={hsl(look.shirt)} />
        {look.tie && <Box size={[0.1, 0.42, 0.03]} at={[0, 0.98, 0.165]} color={look.tie} round={0.01} />}
        {(['la', 'ra'] as const).map((name, index) => (
          <group key={name} ref={limb(name)} position={[index ? 0.4 : -0.4, 1.2, 0]}>
            <Box size={[0.2, 0.5, 0.24]} at={[0, -0.22, 0]} color={hsl(look.shirt, 5)} />
            <Box size={[0.19, 0.14, 0.22]} at={[0, -0.54, 0]} color={skin} />
          </group>
        ))}
        <Box size={[0.46, 0.44, 0.44]} at={[0, 1.5, 0]} color={skin} />
        {[-0.1, 0.1].map((x) => (
          <mesh key={x} position={[x, 1.52, 0.225]}>
            <boxGeometry args={[0.06, 0.09, 0.01]} />
            <meshBasicMaterial color="#1d1a2b" />
          </mesh>
        ))}
        <mesh position={[0, 1.4, 0.225]}>
          <boxGeometry args={[0.14, 0.025, 0.01]} />
          <meshBasicMaterial color="#7a4436" />
        </mesh>
        <Hair role={role} />
      </group>
      <mesh ref={ring} rotation-x={-Math.PI / 2} position-y={0.03}>
        <ringGeometry args={[0.44, 0.54, 28]} />
        <meshBasicMaterial color={role.color} transparent />
      </mesh>
    </group>
  );
}

const Desk = ({ x, z }: { x: number; z: number }) => (
  <group position={[x, 0, z]}>
    <Box size={[2.1, 0.09, 0.95]} at={[0, 0.74, 0]} color="#b98452" round={0.03} />
    <Box size={[2.0, 0.5, 0.06]} at={[0, 0.46, 0.42]} color="#8c5f3a" round={0.02} />
    {[-0.95, 0.95].map((side) => (
      <Box key={side} size={[0.08, 0.72, 0.85]} at={[side, 0.36, 0]} color="#6d4a30" round={0.02} />
    ))}
    <Box size={[0.86, 0.5, 0.05]} at={[0, 1.06, 0.1]} color="#aab2cb" round={0.02} />
    <Box size={[0.3, 0.03, 0.22]} at={[0.7, 0.8, 0.1]} color="#f3f1ea" round={0.01} />
    <Box size={[0.14, 0.18, 0.14]} at={[-0.75, 0.87, 0]} color="#e2575f" round={0.04} />
  </group>
);

const Plant = ({ x, z }: { x: number; z: number }) => (
  <group position={[x, 0, z]}>
    <mesh position-y={0.25} castShadow>
      <cylinderGeometry args={[0.27, 0.2, 0.5, 8]} />
      <meshStandardMaterial color="#b8694a" />
    </mesh>
    {[
      [0, 0.95, 0.46],
      [0.22, 0.75, 0.3],
      [-0.2, 0.8, 0.32],
    ].map(([px, py, size]) => (
      <mesh key={px} position={[px!, py!, 0]} castShadow>
        <icosahedronGeometry args={[size!, 0]} />
        <meshStandardMaterial color="#4f9a55" flatShading />
      </mesh>
    ))}
  </group>
);

const Sofa = ({ x, z }: { x: number; z: number }) => (
  <group position={[x, 0, z]}>
    <Box size={[2.6, 0.4, 0.9]} at={[0, 0.28, 0]} color="#c8573f" />
    <Box size={[2.6, 0.55, 0.25]} at={[0, 0.65, -0.35]} color="#a8442f" />
    {[-1.25, 1.25].map((side) => (
      <Box key={side} size={[0.25, 0.62, 0.9]} at={[side, 0.4, 0]} color="#b34c36" />
    ))}
  </group>
);

/** Colours and sizes of the plain pieces. */
const PIECES: Record<string, { size: [number, number, number]; color: string }> = {
  shelf: { size: [1.9, 1.9, 0.5], color: '#6a452c' },
  cabinet: { size: [0.85, 1.2, 0.6], color: '#8a92a6' },
  coffee: { size: [0.95, 1.3, 0.7], color: '#d5d9e4' },
  cooler: { size: [0.5, 1.4, 0.5], color: '#b6e0f5' },
  counter: { size: [2.9, 0.95, 0.8], color: '#9a6b43' },
  recept: { size: [3.1, 1.05, 0.9], color: '#4a5fa8' },
  lamp: { size: [0.3, 1.7, 0.3], color: '#f7e0a0' },
};

function Furniture({ shared }: { shared: Shared }) {
  return (
    <>
      {ITEMS.map((item, index) => {
        const key = `${item.k} ${index}`;
        const piece = PIECES[item.k];
        if (item.k === 'desk') return <Desk key={key} x={item.x} z={item.y - 0.55} />;
        if (item.k === 'plant') return <Plant key={key} x={item.x} z={item.y - 0.4} />;
        if (item.k === 'sofa') return <Sofa key={key} x={item.x} z={item.y - 0.5} />;
        if (item.k === 'rack') return <Rack key={key} x={item.x} z={item.y - 0.6} shared={shared} seed={index} />;
        if (item.k === 'table')
          return (
            <group key={key} position={[item.x, 0, item.y - 1]}>
              <Box size={[4.2, 0.1, 1.9]} at={[0, 0.76, 0]} color="#a8764a" round={0.04} />
              {[-1.8, 1.8].map((side) => (
                <Box key={side} size={[0.14, 0.74, 1.5]} at={[side, 0.37, 0]} color="#5a3d27" />
              ))}
              {[-1.3, -0.3, 0.8].map((side) => (
                <Box key={side} size={[0.5, 0.02, 0.36]} at={[side, 0.83, 0.3]} color="#eef0f6" round={0.005} />
              ))}
            </group>
          );
        if (item.k === 'rug')
          return (
            <mesh key={key} rotation-x={-Math.PI / 2} position={[item.x, 0.016, item.y]} receiveShadow>
              <planeGeometry args={[5, 3]} />
              <meshStandardMaterial color="#a3504f" roughness={1} />
            </mesh>
          );
        if (item.k === 'chart' || item.k === 'board') {
          const kind = item.k === 'board' ? 'kanban' : index % 2 ? 'pipeline' : 'mrr';
          return <Screen key={key} x={item.x} y={item.y} kind={kind} shared={shared} />;
        }
        if (item.k === 'window')
          return (
            <mesh key={key} position={[item.x, 0.78, item.y + 0.12]}>
              <planeGeometry args={[1.7, 0.62]} />
              <meshBasicMaterial color="#a9dcf6" />
            </mesh>
          );
        if (piece) return <Box key={key} size={piece.size} at={[item.x, piece.size[1] / 2, item.y - 0.45]} color={piece.color} />;
        return null;
      })}
      {Object.entries(SEATS).map(([role, [x, y]]) =>
        role === 'customer' ? null : (
          <group key={role} position={[x + 0.5 + (SEAT_SHIFT[role] ?? 0), 0, y + 0.95]}>
            <Box size={[0.62, 0.1, 0.56]} at={[0, 0.5, 0]} color="#3c4258" />
            <Box size={[0.62, 0.7, 0.1]} at={[0, 0.9, -0.3]} color="#474e68" />
            <Box size={[0.1, 0.45, 0.1]} at={[0, 0.25, 0]} color="#2b2f3e" />
          </group>
        ),
      )}
    </>
  );
}

/** Lamps are green where the product is stable. */
function Rack({ x, z, shared, seed }: { x: number; z: number; shared: Shared; seed: number }) {
  const lamps = useRef<(THREE.MeshBasicMaterial | null)[]>([]);
  useFrame(() => {
    const world = shared.host.world();
    const stability = world?.frames[shared.host.seq()]?.kpis.stability ?? 1;
    lamps.current.forEach((lamp, index) => {
      const luck = ((seed * 37 + index * 61) % 100) / 100;
      lamp?.color.set(luck < stability ? '#58e0a0' : luck < stability + 0.22 ? '#f2b84b' : '#ff5c66');
    });
  });
  return (
    <group position={[x, 0, z]}>
      <Box size={[0.95, 1.8, 0.8]} at={[0, 0.9, 0]} color="#2b2f42" />
      {Array.from({ length: 6 }, (_, index) => (
        <mesh key={index} position={[-0.2, 0.35 + index * 0.24, 0.41]}>
          <boxGeometry args={[0.34, 0.06, 0.02]} />
          <meshBasicMaterial
            ref={(element: THREE.MeshBasicMaterial | null) => {
              lamps.current[index] = element;
            }}
          />
        </mesh>
      ))}
    </group>
  );
}

/** The wall's instruments, drawn like those in 2D. */
function Screen({ x, y, kind, shared }: { x: number; y: number; kind: 'mrr' | 'pipeline' | 'kanban'; shared: Shared }) {
  const drawn = useRef('');
  const { texture, pen } = useMemo(() => {
    const [canvas, pen] = surface(kind === 'kanban' ? 'kanban' : 'chart');
    const texture = new THREE.CanvasTexture(canvas);
    texture.magFilter = THREE.NearestFilter;
    texture.colorSpace = THREE.SRGBColorSpace;
    return { texture, pen };
  }, [kind]);
  useEffect(() => () => texture.dispose(), [texture]);
  useFrame(() => {
    const world = shared.host.world();
    const seq = shared.host.seq();
    const key = `${world?.seats.epoch} ${seq}`;
    if (!world?.frames[seq] || key === drawn.current) return;
    drawn.current = key;
    if (kind === 'kanban') drawKanban(pen, world.features[seq] ?? []);
    else drawChart(pen, world, seq, kind, kind === 'pipeline' ? '#5aa2f0' : '#5fd0a8');
    texture.needsUpdate = true;
  });
  return (
    <mesh position={[x, 0.95, y + 0.2]} rotation-x={-0.25}>
      <planeGeometry args={[2.6, 1.6]} />
      <meshBasicMaterial map={texture} />
    </mesh>
  );
}

const ARC_POINTS = 24;

/** An arc from who speaks to who is spoken to. */
function Talk({ shared }: { shared: Shared }) {
  const line = useMemo(() => {
    const geometry = new THREE.BufferGeometry();
    geometry.setAttribute('position', new THREE.BufferAttribute(new Float32Array(3 * ARC_POINTS), 3));
    const made = new THREE.Line(geometry, new THREE.LineDashedMaterial({ color: '#58e0c0', dashSize: 0.5, gapSize: 0.35 }));
    made.frustumCulled = false;
    return made;
  }, []);
  useEffect(
    () => () => {
      line.geometry.dispose();
      line.material.dispose();
    },
    [line],
  );
  useFrame(() => {
    const { host, motion } = shared;
    const talk = host.world()?.frames[host.seq()]?.talk;
    const to = talk?.to === 'all' ? 'hr' : talk?.to;
    line.visible = Boolean(talk && to);
    if (!talk || !to) return;
    const a = motion.pose(talk.sender, host.time());
    const b = motion.pose(to, host.time());
    const high = 2.2 + Math.hypot(b.x - a.x, b.y - a.y) * 0.18;
    const position = line.geometry.getAttribute('position') as THREE.BufferAttribute;
    for (let index = 0; index < ARC_POINTS; index++) {
      const t = index / (ARC_POINTS - 1);
      position.setXYZ(index, a.x + (b.x - a.x) * t - W / 2, 1.7 + 4 * t * (1 - t) * (high - 1.7), a.y + (b.y - a.y) * t - H / 2);
    }
    position.needsUpdate = true;
    line.computeLineDistances();
  });
  return <primitive object={line} />;
}

/** Leads that wait in the lobby. */
function Visitors({ shared }: { shared: Shared }) {
  const groups = useRef<(THREE.Group | null)[]>([]);
  useFrame(() => {
    const world = shared.host.world();
    const waiting = world?.accounts[shared.host.seq()]?.filter((account) => ['lead', 'qualified'].includes(account.stage)).length ?? 0;
    groups.current.forEach((group, index) => {
      if (group) group.visible = index < waiting;
    });
  });
  return (
    <>
      {WAITING.map(([x, y], index) => (
        <group
          key={index}
          position={[x + 0.5, 0, y + 0.6]}
          ref={(element) => {
            groups.current[index] = element;
          }}
        >
          <Box size={[0.4, 0.6, 0.26]} at={[0, 0.3, 0]} color="#3a4256" />
          <Box size={[0.52, 0.56, 0.3]} at={[0, 0.86, 0]} color={hsl([(index * 83) % 360, 26, 46])} />
          <Box size={[0.4, 0.38, 0.38]} at={[0, 1.34, 0]} color={SKIN[index % SKIN.length]![0]} />
          <Box size={[0.44, 0.16, 0.42]} at={[0, 1.54, -0.02]} color={hsl([(index * 47) % 60, 34, 24])} />
        </group>
      ))}
    </>
  );
}

function Room({ shared }: { shared: Shared }) {
  const walls = useMemo(wallRectangles, []);
  return (
    <group position={[-W / 2, 0, -H / 2]}>
      <mesh rotation-x={-Math.PI / 2} position={[W / 2, -0.02, H / 2]} receiveShadow>
        <planeGeometry args={[W, H]} />
        <meshStandardMaterial color="#9a744a" roughness={0.95} />
      </mesh>
      {ZONES.map((zone, index) => (
        <mesh key={zone.id} rotation-x={-Math.PI / 2} position={[zone.x + zone.w / 2, 0.002 + index * 0.0015, zone.y + zone.h / 2]} receiveShadow>
          <planeGeometry args={[zone.w, zone.h]} />
          <meshStandardMaterial color={FLOORS[zone.floor] ?? '#888'} roughness={0.95} />
        </mesh>
      ))}
      {walls.map(([x, y, w, h]) => (
        <mesh key={`${x},${y}`} position={[x + w / 2, WALL_HEIGHT / 2, y + h / 2]} castShadow receiveShadow>
          <boxGeometry args={[w, WALL_HEIGHT, h]} />
          <meshStandardMaterial color="#d9cfbf" roughness={0.9} />
        </mesh>
      ))}
      <Furniture shared={shared} />
      <Visitors shared={shared} />
    </group>
  );
}

/** The controls, and how much the view can afford. */
function Rig({ handle, shared }: { handle: { controls: OrbitControls | null }; shared: Shared }) {
  const { camera, gl, setDpr, scene } = useThree();
  const probe = useRef({ frames: 0, since: 0, low: false });
  useEffect(() => {
    const controls = new OrbitControls(camera, gl.domElement);
    controls.maxPolarAngle = 1.35;
    controls.minDistance = 6;
    controls.maxDistance = 75;
    controls.target.set(0, 0, 0.5);
    camera.position.copy(homeFor(gl.domElement));
    controls.update();
    handle.controls = controls;
    return () => {
      handle.controls = null;
      controls.dispose();
    };
  }, [camera, gl, handle]);
  const point = useMemo(() => new THREE.Vector3(), []);
  useFrame(({ size }) => {
    const world = shared.host.world();
    if (world) shared.motion.follow(world.frames);
    for (const zone of ZONES) {
      point.set(zone.x + zone.w / 2 - W / 2, 0.05, zone.y + zone.h - 0.5 - H / 2).project(camera);
      shared.host.place(`room ${zone.id}`, { x: ((point.x + 1) / 2) * size.width, y: ((1 - point.y) / 2) * size.height, tall: 0, hidden: point.z > 1 });
    }
    const state = probe.current;
    if (state.low) return;
    const now = performance.now();
    if (!state.frames) state.since = now;
    state.frames += 1;
    if (state.frames < PROBE) return;
    if ((now - state.since) / state.frames > SLOW_MS) {
      state.low = true;
      setDpr(0.75);
      gl.shadowMap.enabled = false;
      scene.traverse((object) => {
        if (object instanceof THREE.Mesh && object.material instanceof THREE.Material) object.material.needsUpdate = true;
      });
    }
    state.frames = 0;
  }, -1);
  return null;
}

export async function createStage3D(parent: HTMLElement, host: StageHost, gone: () => boolean): Promise<Stage | null> {
  // Only what is drawn: registering all of three would carry it whole.
  const { BoxGeometry, Color, CylinderGeometry, DirectionalLight, Group, HemisphereLight, IcosahedronGeometry } = THREE;
  const { Mesh, MeshBasicMaterial, MeshStandardMaterial, PlaneGeometry, RingGeometry, TorusGeometry } = THREE;
  extend({ BoxGeometry, Color, CylinderGeometry, DirectionalLight, Group, HemisphereLight, IcosahedronGeometry });
  extend({ Mesh, MeshBasicMaterial, MeshStandardMaterial, PlaneGeometry, RingGeometry, TorusGeometry });
  const canvas = document.createElement('canvas');
  canvas.style.cssText = 'display:block;width:100%;height:100%';
  parent.append(canvas);
  const root = createRoot(canvas);
  const handle: { controls: OrbitControls | null } = { controls: null };
  const shared: Shared = { host, motion: new Motion(), seatedY: -0.08 };
  const lowFx = new URLSearchParams(location.search).has('lowfx') || parent.clientWidth < 700;
  const size = () => ({ width: Math.max(parent.clientWidth, 1), height: Math.max(parent.clientHeight, 1), top: 0, left: 0 });
  const configure = async (): Promise<void> => {
    await root.configure({
      events,
      shadows: lowFx ? false : 'percentage',
      dpr: lowFx ? 1 : Math.min(window.devicePixelRatio, 1.5),
      size: size(),
      camera: { position: HOME_CAMERA.toArray(), fov: 44, near: 0.5, far: 160 },
      gl: { antialias: !lowFx, powerPreference: 'low-power' },
    });
  };
  await configure();
  if (gone()) {
    root.unmount();
    canvas.remove();
    return null;
  }
  root.render(
    <>
      <color attach="background" args={['#171526']} />
      <hemisphereLight args={['#dfe6ff', '#4a3a50', 1.25]} />
      <directionalLight
        position={[-14, 26, 12]}
        intensity={2}
        castShadow={!lowFx}
        shadow-mapSize={[1024, 1024]}
        shadow-bias={-0.0006}
        shadow-normalBias={0.05}
        shadow-camera-left={-26}
        shadow-camera-right={26}
        shadow-camera-top={26}
        shadow-camera-bottom={-26}
      />
      <Room shared={shared} />
      {ROLES.map((role) => (
        <Humanoid key={role.id} role={role} shared={shared} />
      ))}
      <Talk shared={shared} />
      <Rig handle={handle} shared={shared} />
    </>,
  );
  const observer = new ResizeObserver(() => void configure());
  observer.observe(parent);
  const camera = (): THREE.Camera | undefined => handle.controls?.object;
  return {
    zoom(factor) {
      const { controls } = handle;
      const eye = camera();
      if (!controls || !eye) return;
      eye.position.sub(controls.target).divideScalar(factor).add(controls.target);
      controls.update();
    },
    reset() {
      camera()?.position.copy(homeFor(canvas));
      handle.controls?.target.set(0, 0, 0.5);
      handle.controls?.update();
    },
    destroy() {
      observer.disconnect();
      root.unmount();
      canvas.remove();
    },
  };
}
