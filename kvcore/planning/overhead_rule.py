"""The rule for vLLM's overheads: what the engine's code determines, times one coefficient a part, and its doubt.

The quantities are those of kvcore/planning/overhead_shape.py. The forward pass and the sampler are not there at the
same time, so that the activation peak is the larger of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot, sqrt

from kvcore.planning.overhead_shape import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Coefficients:
    """One number a part.

    `forward`: × what the widest layer keeps. `sorting`, `sampling`: bytes for each logit of the sampler's dummy run,
    before and since vLLM 0.17. `context`: GiB outside torch. `collective`: GiB more for each group of ranks; `linked`:
    GiB more of a group over links of their own, or of a version that counts all that such a group takes. `graph_pool`:
    GiB of the graphs' pool, `expert_pool` more of a mixture's; `graph_nodes`: MiB for each layer and captured graph,
    whatever its width, `expert_nodes` more of a mixture's; `graphs`: 16-bit numbers for each layer, captured graph and
    column. `encoder`: 16-bit numbers that a tower keeps alive for each patch and column. `unified`: GiB that a machine
    with unified memory loses beside. `driver`, `driver_share`: GiB and share of a GPU's memory that nvidia-smi reports
    and CUDA does not give.
    """

    forward: float
    sorting: float
    sampling: float
    context: float
    collective: float
    linked: float
    graph_pool: float
    expert_pool: float
    graph_nodes: float
    expert_nodes: float
    graphs: float
    encoder: float
    unified: float
    driver: float
    driver_share: float


# How far each part may be off: shares of the part, and what is off whatever the parts are. `encoder` is a share of the
# tower's own peak, as far as that stands out; `unfamiliar` a share of the memory for kinds of models and splits of
# which there are few logs (towers, replicas of a mixture, quantised mixtures). `sampling` is a share of what samplers
# without sorting take: 10 to 27 B a logit, by the kernel that is at hand; `unpacked` of the matrices that a 4-bit
# format unpacks. `linked` is in GiB: logs show 0.5 to 2.1 GiB for groups over links of their own. `graphs` and, of
# mixtures, `expert_graphs`: so far off that the ends hold 14 of 15 estimates that dense models logged and all of
# mixtures, each judged by a fit that had not seen its source, and one that is twice as large with another kernel.
SPREAD = {
    "activation": 0.06, "sampling": 0.25, "unpacked": 0.75, "collective": 0.8, "linked": 0.5, "graphs": 0.4,
    "expert_graphs": 0.5, "encoder": 0.2, "unified": 1.0, "driver": 0.4, "weights": 0.01, "total": 0.003,
    "constant": 0.16, "unfamiliar": 0.015,
}  # fmt: skip


# No end lies further off than so many spreads.
_MOST_SPREADS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Best guesses in GiB on one GPU. `lower_peak` and `higher_peak`: the activation peak where settings that were
    left open have the other usual value; `activation_doubt`: one unit of doubt about it, as `graphs_doubt`. `encoder`:
    what a tower takes beyond that peak, with `encoder_doubt`."""

    activation: float
    activation_doubt: float
    lower_peak: float
    higher_peak: float
    context: float
    collective: float
    graphs: float
    graphs_doubt: float
    encoder: float
    encoder_doubt: float
    unified: float
    driver: float

    @property
    def total(self) -> float:
        """All parts together, with the driver's."""
        inside = self.activation + self.context + self.collective + self.graphs
        return inside + self.encoder + self.unified + self.driver


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Coefficients, and how many spreads the true value lies below and above the best guess at most."""

    coefficients: Coefficients
    low: float
    high: float


def activation_gib(rule: Coefficients, profile: Profile, tokens: int | None = None, seqs: int | None = None) -> float:
    """The peak: the widest layer, or the sampler beside the last hidden states. A latent's room comes on top.

    `tokens` and `seqs` stand in for the profile's own.
    """
    scale = 1.0 if tokens is None else tokens / profile.tokens
    sampled = 1.0 if seqs is None or not profile.seqs else seqs / profile.seqs
    per_logit = rule.sorting if profile.sorts else rule.sampling
    sampler = per_logit * profile.logits_gib * sampled + profile.hidden_gib * scale
    layer = rule.forward * (profile.forward_gib * scale + profile.unpacked_gib)
    return max(layer, sampler) + profile.workspace_gib


def graph_terms(profile: Profile) -> dict[str, float]:
    """What each coefficient of the graphs is multiplied by, in GiB; empty where none are captured or taken off.

    vLLM captures the two largest graphs of each kind and takes the second for all others (gpu_model_runner.py,
    profile_cudagraph_memory): a pool for the largest, and for each graph the nodes of all layers, which CUDA keeps
    whatever their width, and results of each layer. Ranks are no factor: each keeps nodes for its own kernels.
    """
    if not profile.graph_units:
        return {}
    nodes = profile.graph_units / 1024
    terms = {"graph_pool": 1.0, "graph_nodes": nodes, "graphs": profile.graph_gib}
    return terms | {"expert_pool": 1.0, "expert_nodes": nodes} if profile.expert_graphs else terms


def graphs_gib(rule: Coefficients, profile: Profile) -> float:
    """The graphs that are taken off before the cache is sized."""
    return sum(float(getattr(rule, name)) * factor for name, factor in graph_terms(profile).items())


def tower_peak_gib(rule: Coefficients, profile: Profile) -> float:
    """What the tower itself holds at its peak, which is over before the language model runs."""
    made = profile.shape.tower
    return (rule.encoder + made.outputs) * profile.tower_gib if made else 0.0


def fewer_seqs(seqs: int) -> int:
    """The other usual number of sequences where none is stated: 256 instead of 1,024, else half as many."""
    return 256 if seqs > 256 else seqs // 2


def parts_gib(rule: Coefficients, profile: Profile, utilization: float, with_driver: bool = True) -> Parts:
    """Every part in GiB; without the driver's where the memory is what CUDA itself gives."""
    peak = activation_gib(rule, profile)
    driver = 0.0
    if with_driver and not profile.unified:
        driver = utilization * (rule.driver + rule.driver_share * profile.total_gib)
    alone = peak - profile.workspace_gib
    graphs = graphs_gib(rule, profile)
    tower = tower_peak_gib(rule, profile)
    encoder = max(profile.pictures_gib, tower - alone) if tower else 0.0
    # How far the tower may stand out further. Its share shrinks by less than the peak grows, whatever the ends are.
    higher = (1 + _MOST_SPREADS * SPREAD["encoder"]) * tower - alone - encoder
    return Parts(
        activation=peak,
        # The larger of both, so that a larger peak is never in less doubt.
        activation_doubt=max(
            SPREAD["activation"] * peak,
            0.0 if profile.sorts else SPREAD["sampling"] * rule.sampling * profile.logits_gib,
        )
        + SPREAD["unpacked"] * profile.unpacked_gib,
        lower_peak=activation_gib(rule, profile, seqs=fewer_seqs(profile.seqs)) if profile.seqs_open else peak,
        higher_peak=activation_gib(rule, profile, tokens=2 * profile.tokens) if profile.tokens_open else peak,
        context=rule.context,
        collective=rule.collective * profile.groups + (rule.linked if profile.linked else 0.0),
        graphs=graphs,
        graphs_doubt=SPREAD["expert_graphs" if profile.expert_graphs else "graphs"] * graphs,
        encoder=encoder,
        encoder_doubt=max(0.0, higher) / _MOST_SPREADS + SPREAD["encoder"] * profile.pictures_gib,
        unified=rule.unified if profile.unified else 0.0,
        driver=driver,
    )


def spread_gib(parts: Parts, profile: Profile, estimated_weights_gib: float) -> float:
    """One unit of doubt about the total: what the parts may be off, as independent."""
    return sqrt(
        sum((SPREAD[name] * getattr(parts, name)) ** 2 for name in ("collective", "unified", "driver"))
        + parts.activation_doubt**2
        + parts.graphs_doubt**2
        + parts.encoder_doubt**2
        + (SPREAD["linked"] if profile.linked else 0.0) ** 2
        + (0.0 if profile.familiar else SPREAD["unfamiliar"] * profile.total_gib) ** 2
        + (SPREAD["weights"] * estimated_weights_gib) ** 2
        + (SPREAD["total"] * profile.total_gib) ** 2
        + SPREAD["constant"] ** 2
    )


def ends_gib(rule: Fit, parts: Parts, profile: Profile, estimated_weights_gib: float) -> tuple[float, float]:
    """Low and high of the total: so many spreads off, and as far as settings that were left open may move it."""
    spread = spread_gib(parts, profile, estimated_weights_gib)
    below = hypot(rule.low * spread, parts.activation - parts.lower_peak)
    above = hypot(rule.high * spread, parts.higher_peak - parts.activation)
    return max(0.0, parts.total - below), parts.total + above
