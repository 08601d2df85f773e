export default function Race() { return <p className="empty">Race</p>; }
