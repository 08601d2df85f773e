// The office in 3D on react-three-fiber: the same plan, the same looks, the same walks. Own controls and labels; nothing is loaded
// from elsewhere. Shadows and full resolution are given up when frames come too slowly.
import { createRoot, events, extend, useFrame, useThree } from '@react-three/fiber';
import { useEffect, useMemo, useRef } from 'react';
import * as THREE from 'three';
import { OrbitControls } from 'three/addons/controls/OrbitControls.js';
import { ROLES } from '../lib/roles';
import { Box, hsl, Humanoid, type Shared } from './Humanoid';
import { arc, ARC_POINTS } from './arcs';
import { receivers } from './bubbles';
import { onDemand, type Demand } from './demand';
import { leavers, LEAVERS } from './happening';
import { corners, fit } from './fit';
import { drawChart, drawKanban, surface } from './instruments';
import { H, ITEMS, SEAT_SHIFT, SEATS, W, WAITING, wallRectangles, ZONES } from './layout';
import { Motion } from './motion';
import { Pace } from './pace';
import { SKIN } from './pix';
import type { Stage, StageHost } from './stage';

const FLOORS = ['#a97c50', '#5d6f8f', '#94627a', '#56758f', '#7a6a9a', '#64894f', '#d8c8a8', '#454b5e'];
const WALL_HEIGHT = 1.25;
/** From where the office is seen at first, and what has to be seen: all of it, with the people at its edges. */
const FROM = [0, 31, 26.5] as const;
const FOV = 44;
const MARGIN = 0.02;
const OFFICE = corners([-W / 2, 0, -H / 2], [W / 2, 1.9, H / 2]);

/** Show the whole office, whatever the canvas's shape. */
function home(controls: OrbitControls, canvas: HTMLCanvasElement): void {
  const aspect = Math.max(1, canvas.clientWidth) / Math.max(1, canvas.clientHeight);
  const { eye, target } = fit(OFFICE, { from: FROM, fov: FOV, aspect, margin: MARGIN });
  controls.object.position.set(...eye);
  controls.target.set(...target);
  controls.maxDistance = Math.max(FARTHEST, 1.2 * controls.getDistance());
  controls.update();
}
const FARTHEST = 75;

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
    const key = `${world?.seats.world} ${world?.seats.epoch} ${seq}`;
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

const DASH = { size: 0.5, gap: 0.35 };
/** Tiles per second at which dashes run from who speaks to who is spoken to. */
const DASH_SPEED = 1.2;

/** Dashed arcs from the speaker to all who are spoken to. */
function Talk({ shared }: { shared: Shared }) {
  const lines = useMemo(() => {
    const material = new THREE.LineDashedMaterial({ color: '#58e0c0', dashSize: DASH.size, gapSize: DASH.gap });
    return ROLES.map(({ id }) => {
      const geometry = new THREE.BufferGeometry();
      geometry.setAttribute('position', new THREE.BufferAttribute(new Float32Array(3 * ARC_POINTS), 3));
      geometry.setAttribute('lineDistance', new THREE.BufferAttribute(new Float32Array(ARC_POINTS), 1));
      const line = new THREE.Line(geometry, material);
      line.frustumCulled = false;
      return { id, line };
    });
  }, []);
  useEffect(
    () => () => {
      for (const { line } of lines) line.geometry.dispose();
      lines[0]?.line.material.dispose();
    },
    [lines],
  );
  useFrame(() => {
    const { host, motion } = shared;
    const talk = host.world()?.frames[host.seq()]?.talk ?? null;
    const to = receivers(talk);
    const ran = host.calm() ? 0 : ((performance.now() / 1000) * DASH_SPEED) % (DASH.size + DASH.gap);
    for (const { id, line } of lines) {
      line.visible = to.includes(id);
      if (!talk || !line.visible) continue;
      const a = motion.pose(talk.sender, host.time());
      const b = motion.pose(id, host.time());
      const points = arc(a, b);
      const position = line.geometry.getAttribute('position') as THREE.BufferAttribute;
      const distance = line.geometry.getAttribute('lineDistance') as THREE.BufferAttribute;
      points.forEach(({ x, y, z, along }, index) => {
        position.setXYZ(index, x - W / 2, y, z - H / 2);
        // A dash is where the distance has a certain remainder: what is taken from all moves the dashes towards the end.
        distance.setX(index, along - ran);
      });
      position.needsUpdate = true;
      distance.needsUpdate = true;
    }
  });
  return (
    <>
      {lines.map(({ id, line }) => (
        <primitive key={id} object={line} />
      ))}
    </>
  );
}

const Visitor = ({ look }: { look: number }) => (
  <>
    <Box size={[0.4, 0.6, 0.26]} at={[0, 0.3, 0]} color="#3a4256" />
    <Box size={[0.52, 0.56, 0.3]} at={[0, 0.86, 0]} color={hsl([(look * 83) % 360, 26, 46])} />
    <Box size={[0.4, 0.38, 0.38]} at={[0, 1.34, 0]} color={SKIN[look % SKIN.length]![0]} />
    <Box size={[0.44, 0.16, 0.42]} at={[0, 1.54, -0.02]} color={hsl([(look * 47) % 60, 34, 24])} />
  </>
);

/** Customers who leave; a cloud goes above each. */
function Leaving({ shared }: { shared: Shared }) {
  const groups = useRef<(THREE.Group | null)[]>([]);
  const point = useMemo(() => new THREE.Vector3(), []);
  useFrame(({ camera, size }) => {
    const { host } = shared;
    const time = host.calm() ? Math.floor(host.time()) + 0.999 : host.time();
    const gone = leavers(host.world()?.frames ?? [], host.seq(), time);
    groups.current.forEach((group, index) => {
      const one = gone[index];
      if (!group) return;
      group.visible = Boolean(one);
      if (one) group.position.set(one.x, 0, one.y);
      const down = (tall: number): number => {
        point.set((one?.x ?? 0) - W / 2, tall, (one?.y ?? 0) - H / 2).project(camera);
        return ((1 - point.y) / 2) * size.height;
      };
      const head = down(1.7);
      const y = down(0);
      const x = ((point.x + 1) / 2) * size.width;
      host.place(`leaver ${index}`, { x, y, tall: y - head, hidden: !one || point.z > 1 });
    });
  });
  return (
    <>
      {Array.from({ length: LEAVERS }, (_, index) => (
        <group
          key={index}
          visible={false}
          ref={(element) => {
            groups.current[index] = element;
          }}
        >
          <Visitor look={index} />
        </group>
      ))}
    </>
  );
}

/** Leads that wait in the lobby. */
function Visitors({ shared }: { shared: Shared }) {
  const groups = useRef<(THREE.Group | null)[]>([]);
  useFrame(() => {
    const world = shared.host.world();
    const waiting =
      world?.accounts[shared.host.seq()]?.filter((account) => ['lead', 'qualified'].includes(account.stage)).length ?? 0;
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
          <Visitor look={index} />
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
        <mesh
          key={zone.id}
          rotation-x={-Math.PI / 2}
          position={[zone.x + zone.w / 2, 0.002 + index * 0.0015, zone.y + zone.h / 2]}
          receiveShadow
        >
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
      <Leaving shared={shared} />
    </group>
  );
}

interface Handle {
  controls: OrbitControls | null;
  /** The reader has moved the camera, which then stays where it is. */
  moved: boolean;
}

/** The controls, and how much the view can afford. */
function Rig({ handle, shared, plain }: { handle: Handle; shared: Shared; plain: boolean }) {
  const { camera, gl, setDpr, scene, invalidate, size } = useThree();
  const demand = useRef<Demand | null>(null);
  const pace = useMemo(() => new Pace(plain), [plain]);
  useEffect(() => {
    const view = (): string => [...camera.matrixWorld.elements.map((one) => one.toFixed(3)), size.width, size.height].join(' ');
    const made = onDemand(shared.host, view, (now, steady) => {
      const found = pace.next(now, steady);
      if (found === 'plain') {
        setDpr(0.75);
        gl.shadowMap.enabled = false;
        scene.traverse((object) => {
          if (object instanceof THREE.Mesh && object.material instanceof THREE.Material) object.material.needsUpdate = true;
        });
      } else if (found !== null) shared.host.slow?.(found);
      invalidate();
    });
    demand.current = made;
    return () => made.stop();
  }, [camera, gl, invalidate, pace, scene, setDpr, shared, size.width, size.height]);
  useEffect(() => {
    const controls = new OrbitControls(camera, gl.domElement);
    controls.maxPolarAngle = 1.35;
    controls.minDistance = 6;
    home(controls, gl.domElement);
    controls.addEventListener('start', () => (handle.moved = true));
    const poke = (): void => demand.current?.poke();
    controls.addEventListener('change', poke);
    handle.controls = controls;
    return () => {
      handle.controls = null;
      controls.removeEventListener('change', poke);
      controls.dispose();
    };
  }, [camera, gl, handle]);
  const point = useMemo(() => new THREE.Vector3(), []);
  useFrame(({ size }) => {
    const world = shared.host.world();
    if (world) shared.motion.follow(world.frames);
    for (const zone of ZONES) {
      point.set(zone.x + zone.w / 2 - W / 2, 0.05, zone.y + zone.h - 0.5 - H / 2).project(camera);
      shared.host.place(`room ${zone.id}`, {
        x: ((point.x + 1) / 2) * size.width,
        y: ((1 - point.y) / 2) * size.height,
        tall: 0,
        hidden: point.z > 1,
      });
    }
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
  const handle: Handle = { controls: null, moved: false };
  const shared: Shared = { host, motion: new Motion(), seatedY: -0.08 };
  const lowFx = new URLSearchParams(location.search).has('lowfx') || parent.clientWidth < 700;
  const size = () => ({ width: Math.max(parent.clientWidth, 1), height: Math.max(parent.clientHeight, 1), top: 0, left: 0 });
  const configure = async (): Promise<void> => {
    await root.configure({
      events,
      frameloop: 'demand',
      shadows: lowFx ? false : 'percentage',
      dpr: lowFx ? 1 : Math.min(window.devicePixelRatio, 1.5),
      size: size(),
      camera: { position: [...FROM], fov: FOV, near: 0.5, far: 160 },
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
      <Rig handle={handle} shared={shared} plain={lowFx} />
    </>,
  );
  const observer = new ResizeObserver(() => {
    void configure().then(() => {
      if (handle.controls && !handle.moved) home(handle.controls, canvas);
    });
  });
  observer.observe(parent);
  const camera = (): THREE.Camera | undefined => handle.controls?.object;
  return {
    zoom(factor) {
      const { controls } = handle;
      const eye = camera();
      if (!controls || !eye) return;
      handle.moved = true;
      eye.position.sub(controls.target).divideScalar(factor).add(controls.target);
      controls.update();
    },
    reset() {
      handle.moved = false;
      if (handle.controls) home(handle.controls, canvas);
    },
    destroy() {
      observer.disconnect();
      root.unmount();
      canvas.remove();
    },
  };
}
