"""Names of companies and features: the usual ones, those of held-out scenarios, and pools from which a seed draws.

A model that learns with the same few names recalls them; with names that it has never seen it has to copy them from its prompt.
"""

from __future__ import annotations

from functools import lru_cache
from types import MappingProxyType

from onthejob.envs.office.luck import Sub, draw, mix

NAMES = (
    "Acme", "Bolt", "Coda", "Dune", "Echo", "Flux", "Gale", "Hive", "Iris", "Juno", "Kite", "Luma", "Mesa", "Nova",
    "Opal", "Pine", "Quill", "Reef", "Sage", "Tide", "Unit", "Vega", "Wave", "Yard", "Zest", "Apex", "Brio", "Cove",
    "Dawn", "Elm", "Fern", "Glow", "Hub", "Ivy", "Jade", "Knot", "Lark", "Mint", "Node", "Oak", "Peak", "Rune", "Star",
    "Tern", "Vale", "Wren", "Zinc", "Arch",
)  # fmt: skip
"""Of companies, in the order in which they are given, from a place that the seed decides."""
HELD_OUT_NAMES = (
    "Abbey", "Birch", "Cairn", "Drift", "Ember", "Flint", "Grove", "Haven", "Islet", "Jasper", "Kelp", "Linden", "Moor",
    "Nimbus", "Orbit", "Prairie", "Quartz", "Ridge", "Slate", "Thorn", "Umber", "Vista", "Willow", "Xenon", "Yarrow", "Zephyr",
    "Alder", "Basalt", "Cedar", "Delta", "Estuary", "Fjord", "Garnet", "Heath", "Indigo", "Juniper", "Karst", "Lagoon",
    "Maple", "Nectar", "Onyx", "Pebble", "Rowan", "Sierra", "Tundra", "Verge", "Wharf", "Yew",
)  # fmt: skip
"""Of companies in held-out scenarios."""
MOST_NAMES = len(NAMES)
"""Names that one company knows before it numbers further ones."""

FEATURE_NAMES: MappingProxyType[str, tuple[str, ...]] = MappingProxyType(
    {
        "SSO": (
            "Badge", "Bouncer", "Credential", "Doorman", "Enclave", "Fortress", "Gatekeeper", "Guardian", "Identity", "Keychain",
            "Keyring", "Lockbox", "Login", "Logon", "Padlock", "Pincode", "Porter", "Sentinel", "Shield", "Turnstile", "Vault",
            "Warden", "Watchtower", "Wicket",
        ),
        "API": (
            "Adapter", "Bridge", "Bus", "Coupler", "Endpoint", "Exchange", "Funnel", "Gateway", "Graph", "Harbor", "Hookup",
            "Importer", "Interop", "Junction", "Linkage", "Mesh", "Piping", "Plugin", "Relay", "Replica", "Router", "Socket",
            "Splice", "Switchboard",
        ),
        "Dashboard": (
            "Almanac", "Atlas", "Barometer", "Canvas", "Chart", "Cockpit", "Compass", "Cube", "Digest", "Explorer", "Gauge",
            "Lens", "Magnifier", "Metrics", "Mosaic", "Overview", "Panorama", "Periscope", "Prisms", "Scorecard", "Spotlight",
            "Summary", "Telescope", "Trends",
        ),
        "App": (
            "Backpack", "Companion", "Courier", "Fieldkit", "Glance", "Gopher", "Hopper", "Jetpack", "Lite", "Nomad", "Offline",
            "Pager", "Palm", "Pocket", "Roamer", "Rover", "Satchel", "Sidekick", "Swipe", "Tablet", "Touch", "Traveler", "Wallet",
            "Widget",
        ),
        "Cache": (
            "Accelerator", "Afterburner", "Blaze", "Booster", "Bullet", "Catalyst", "Cheetah", "Dash", "Express", "Falcon",
            "Gallop", "Hare", "Instant", "Jet", "Lightning", "Nitro", "Overdrive", "Prefetch", "Quickstep", "Rocket", "Sprinter",
            "Swift", "Tailwind", "Warp",
        ),
        "Invoices": (
            "Abacus", "Bursar", "Cashier", "Checkout", "Clearing", "Collector", "Counter", "Dunning", "Escrow", "Fees", "Ledger",
            "Mandates", "Meter", "Payouts", "Payroll", "Pricing", "Quotes", "Receipts", "Refunds", "Register", "Subscriptions",
            "Tariffs", "Teller", "Vouchers",
        ),
        "Audit": (
            "Archive", "Blackbox", "Chronicle", "Compliance", "Controls", "Diary", "Evidence", "Footprint", "Hallmark",
            "Inspector", "Journal", "Logbook", "Minutes", "Notary", "Oversight", "Policy", "Provenance", "Records",
            "Retention", "Reviewer", "Seal", "Timeline", "Tracer", "Witness",
        ),
        "Webhooks": (
            "Alerts", "Beacon", "Bell", "Broadcast", "Buzzer", "Callback", "Chime", "Dispatch", "Echoes", "Feed", "Flare",
            "Herald", "Listener", "Messenger", "Monitor", "Notifier", "Outbox", "Pings", "Pulse", "Siren", "Stream",
            "Ticker", "Trigger", "Whistle",
        ),
    }
)  # fmt: skip
"""Usual name of a feature -> the names from which one is drawn; none of them is a held-out one."""
COMPANY_NAMES = (
    "Adair", "Agate", "Almond", "Amber", "Anchor", "Anvil", "Apricot", "Arbor", "Argo", "Arrow", "Aster", "Aurora", "Avalon",
    "Azure", "Bamboo", "Banner", "Barley", "Bayou", "Beech", "Beaver", "Beryl", "Bison", "Blossom", "Bramble", "Breeze",
    "Brook", "Buckeye", "Cactus", "Calypso", "Camber", "Canyon", "Caper", "Cardinal", "Carmine", "Cascade", "Cashmere",
    "Castle", "Cobalt", "Cobble", "Comet", "Condor", "Copper", "Coral", "Cosmos", "Cricket", "Crimson", "Crystal", "Cypress",
    "Daisy", "Denim", "Domino", "Dorado", "Dove", "Dragon", "Eagle", "Ebony", "Eclipse", "Elder", "Elmwood", "Equinox",
    "Everest", "Feather", "Fennel", "Finch", "Firefly", "Forge", "Fountain", "Foxglove", "Galaxy", "Galleon", "Ginger",
    "Glacier", "Granite", "Griffin", "Harvest", "Hazel", "Heron", "Hickory", "Holly", "Horizon", "Ibis", "Icicle", "Ironwood",
    "Jaguar", "Jetty", "Kestrel", "Lantern", "Larch", "Laurel", "Lemon", "Lilac", "Lotus", "Lynx", "Magnet", "Magnolia",
    "Mallard", "Mango", "Marble", "Marigold", "Meadow", "Mercury", "Meridian", "Mirage", "Monarch", "Mulberry", "Mustang",
    "Myrtle", "Nebula", "Nutmeg", "Oasis", "Obsidian", "Olive", "Orchid", "Osprey", "Otter", "Oxbow", "Palisade", "Panther",
    "Papaya", "Paprika", "Parsley", "Pelican", "Pepper", "Phoenix", "Pinnacle", "Plover", "Poplar", "Prism", "Puffin", "Quail",
    "Quiver", "Raven", "Redwood", "Rhubarb", "Robin", "Saffron", "Sapphire", "Sequoia", "Shamrock", "Silver", "Sorrel",
    "Sparrow", "Spruce", "Summit", "Sycamore", "Talon", "Tamarack", "Tangerine", "Teak", "Thistle", "Timber", "Topaz", "Trellis",
    "Tulip", "Turret", "Velvet", "Violet", "Walnut", "Wicker", "Yonder", "Zeppelin", "Zinnia",
)  # fmt: skip
"""From which the names of companies are drawn; apart from the usual and the held-out ones."""


@lru_cache(maxsize=1024)
def drawn_features(seed: int) -> tuple[str, ...]:
    """Names of the features in the company of `seed`, in the order of the catalogue."""
    key = mix(seed, Sub.NAME, 1)
    return tuple(names[int(draw(key, Sub.NAME, place, 0) * len(names))] for place, names in enumerate(FEATURE_NAMES.values()))


@lru_cache(maxsize=1024)
def drawn_companies(seed: int) -> tuple[str, ...]:
    """Names of the accounts in the company of `seed`, all different, in the order in which they are given."""
    key = mix(seed, Sub.NAME, 2)
    places = sorted(range(len(COMPANY_NAMES)), key=lambda place: draw(key, Sub.NAME, place, 0))
    return tuple(COMPANY_NAMES[place] for place in places[:MOST_NAMES])
