"""How replies and what came of them become a better adapter.

Every piece works by itself on any PEFT model: `Snapshot`, `weight_delta` and adapter directories (`lora`), `advantages`
(`advantage`), packed rows (`tree`, `batch`, `forward`), losses (`loss`), and the two trainers built from them (`learner`, `sft`).
"""
