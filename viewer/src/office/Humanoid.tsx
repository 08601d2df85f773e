// People of blocks in 3D, from the same looks as the sprites, placed and moved by the same plan.
import { useFrame } from '@react-three/fiber';
import { useEffect, useMemo, useRef } from 'react';
import * as THREE from 'three';
import { RoundedBoxGeometry } from 'three/addons/geometries/RoundedBoxGeometry.js';
import type { RoleInfo } from '../lib/roles';
import { H, W } from './layout';
import type { Motion } from './motion';
import { SKIN } from './pix';
import type { StageHost } from './stage';

const HEAD = 1.95;

type Hsl = readonly [number, number, number];
export const hsl = ([h, s, l]: Hsl, more = 0): string => `hsl(${h}, ${s}%, ${Math.min(96, l + more)}%)`;

export interface Shared {
  host: StageHost;
  motion: Motion;
  seatedY: number;
}

export function Box({
  size,
  at,
  color,
  round = 0.05,
}: {
  size: [number, number, number];
  at: [number, number, number];
  color: string;
  round?: number;
}) {
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
      {look.style !== 'beanie' && (
        <Box size={[0.52, long ? 0.62 : 0.34, 0.16]} at={[0, long ? 1.44 : 1.58, -0.2]} color={color} />
      )}
      {long &&
        [-0.25, 0.25].map((x) => (
          <Box
            key={x}
            size={[0.1, look.style === 'long' ? 0.6 : 0.4, 0.3]}
            at={[x, look.style === 'long' ? 1.44 : 1.54, -0.06]}
            color={color}
          />
        ))}
      {look.style === 'bun' && <Box size={[0.24, 0.2, 0.24]} at={[0, 1.9, -0.06]} color={color} round={0.09} />}
      {look.style === 'spiky' &&
        [-0.15, 0, 0.15].map((x) => <Box key={x} size={[0.1, 0.16, 0.28]} at={[x, 1.86, 0]} color={color} />)}
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
export function Humanoid({ role, shared }: { role: RoleInfo; shared: Shared }) {
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
    const talking = pose.activity === 'COLLABORATING';
    const typing = seated && acts && !calm ? Math.sin(performance.now() / 70) * 0.14 : 0;
    const gesture = talking && acts && !calm ? Math.sin(performance.now() / 260) * 0.35 : 0;
    if (group.current) {
      group.current.position.set(pose.x - W / 2, 0, pose.y - H / 2 + 0.25);
      group.current.rotation.y = { down: 0, up: Math.PI, left: -Math.PI / 2, right: Math.PI / 2 }[pose.facing];
    }
    if (body.current) body.current.position.y = seated ? shared.seatedY : walking ? Math.abs(Math.sin(t * 26)) * 0.06 : 0;
    const { la, ra, ll, rl } = limbs.current;
    if (ll) ll.rotation.x = seated ? -1.45 : swing;
    if (rl) rl.rotation.x = seated ? -1.45 : -swing;
    // Who talks with others holds one hand before the chest and raises the other.
    if (la) la.rotation.x = seated ? -1.15 + typing : talking ? -0.75 - gesture : -swing;
    if (ra) ra.rotation.x = seated ? -1.15 - typing : talking ? -2.2 + gesture : swing;
    if (ra) ra.rotation.z = talking ? 0.25 : 0;
    const chosen = host.selected() === role.id;
    if (ring.current) {
      ring.current.scale.setScalar(acts ? 1.35 : chosen ? 1.2 : 1);
      (ring.current.material as THREE.MeshBasicMaterial).opacity = acts || chosen ? 1 : 0.5;
    }
    // The name stands at the feet, as in 2D; the bubble above the head.
    point.set(pose.x - W / 2, 0.05, pose.y - H / 2 + 0.6).project(camera);
    const feet = { x: ((point.x + 1) / 2) * size.width, y: ((1 - point.y) / 2) * size.height, z: point.z };
    point.set(pose.x - W / 2, HEAD, pose.y - H / 2 + 0.25).project(camera);
    host.place(role.id, {
      x: feet.x,
      y: feet.y,
      tall: Math.max(12, feet.y - ((1 - point.y) / 2) * size.height),
      hidden: feet.z > 1,
    });
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
