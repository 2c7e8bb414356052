"""Rules as the ScaledObject that KEDA reads, a comment beside each number, and read back. Pure.

Rules -> render -> scaledobject.yaml -> read -> ScaledObject, which the simulation runs on
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from load.autoscale.rules import TUNING, Rules, Trigger
from load.errors import BadRun

STATIC, KEEP = "static", "currentReplicasIfHigher"


def render(rules: Rules, command: str) -> str:
    """Write the YAML.

    Args:
        rules: the numbers, with their reasons.
        command: what a reader types to have it written anew.
    """
    wishes = rules.wishes
    return f"""\
# KEDA's rules for the replicas of {rules.model}. Written by
#     {command}
# which derives the numbers from what `python -m load tune` measured; do not edit them here. docs/autoscaling.md says
# what they do over a day, and why they are these.
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata:
  name: {wishes.deployment}
spec:
  scaleTargetRef:
    name: {wishes.deployment}
  # s; the HPA decides as often. KEDA itself asks at this pace only whether there is anything to do at all.
  pollingInterval: {TUNING.polling_s}
  # --min-replicas; never 0: nothing holds requests until a replica is there.
  minReplicaCount: {wishes.min_replicas}
  # --max-replicas
  maxReplicaCount: {wishes.max_replicas}
  # Where Prometheus does not answer, or has nothing of the edge: what runs stays, and there are at least so many.
  fallback:
    # Questions without an answer in a row.
    failureThreshold: {TUNING.failures}
    # Half way between the bounds.
    replicas: {rules.fallback_replicas}
    # KEDA 2.17 and later; older ones do not know it, and go down to `replicas`.
    behavior: {KEEP}
  advanced:
    horizontalPodAutoscalerConfig:
      behavior:
        scaleUp:
          # At once: a new replica takes {rules.cold_start_s:g} s as it is
          # ({rules.cold_start_reason}).
          stabilizationWindowSeconds: 0
          selectPolicy: Max
          policies:
            # All that are allowed, if need be.
            - type: Pods
              value: {wishes.max_replicas}
              periodSeconds: {TUNING.policy_s}
        scaleDown:
          # s that fewer must be enough; {rules.stabilization_reason}.
          stabilizationWindowSeconds: {rules.stabilization_s}
          selectPolicy: Max
          policies:
            # A quarter in a minute: each is drained, and what was wrong can be seen before all are gone.
            - type: Percent
              value: {TUNING.down_percent}
              periodSeconds: 60
  # Each asks for its metric over its threshold, rounded up; the largest wins.
  triggers:
{"".join(_trigger(trigger, wishes.prometheus) for trigger in rules.triggers)}"""


def _trigger(trigger: Trigger, prometheus: str) -> str:
    query = trigger.query.replace(" or ", "\n          or ").replace(" * (", "\n          * (")
    return f"""\
    - type: prometheus
      name: {trigger.name}
      # The threshold is that of one replica.
      metricType: AverageValue
      metadata:
        serverAddress: {prometheus}
        query: >-
          {query}
        # {trigger.reason}.
        threshold: "{trigger.target}"
        # "true" would take an outage of Prometheus for no traffic, and scale down to the minimum.
        ignoreNullValues: "false"
"""


@dataclass(frozen=True, slots=True)
class Query:
    """A trigger as KEDA has it.

    Attributes:
        name: its own.
        query: PromQL.
        threshold: AverageValue: the metric's sum, for each replica.
        ignores_nulls: whether no answer is taken for 0.
    """

    name: str
    query: str
    threshold: float
    ignores_nulls: bool


@dataclass(frozen=True, slots=True)
class Policy:
    """At most so many pods, or so many percent of those there were, in a period."""

    kind: str
    value: int
    period_s: float


@dataclass(frozen=True, slots=True)
class Direction:
    """The rules of one direction: the policy that allows most counts."""

    stabilization_s: float
    policies: tuple[Policy, ...]


@dataclass(frozen=True, slots=True)
class ScaledObject:
    """What the simulation needs of one.

    Attributes:
        min_replicas, max_replicas: bounds.
        failures, fallback_replicas: how many questions without an answer, and what they lead to; None without any.
        keeps_current: whether the fallback keeps more replicas where there are more.
        up, down: how fast.
        triggers: the largest wins.
    """

    min_replicas: int
    max_replicas: int
    failures: int
    fallback_replicas: int | None
    keeps_current: bool
    up: Direction
    down: Direction
    triggers: tuple[Query, ...]


def read(text: str) -> ScaledObject:
    """Read a ScaledObject of this kind.

    Args:
        text: YAML.

    Raises:
        BadRun: it is another kind of object, or has what this does not simulate.
    """
    try:
        document = yaml.safe_load(text)
        if document["kind"] != "ScaledObject":
            raise BadRun(f"{document['kind']} is no ScaledObject")
        spec = document["spec"]
        behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        fallback = spec.get("fallback") or {}
        return ScaledObject(
            min_replicas=spec["minReplicaCount"],
            max_replicas=spec["maxReplicaCount"],
            failures=fallback.get("failureThreshold", 0),
            fallback_replicas=fallback.get("replicas"),
            keeps_current=fallback.get("behavior", STATIC) == KEEP,
            up=_direction(behavior["scaleUp"]),
            down=_direction(behavior["scaleDown"]),
            triggers=_queries(spec["triggers"]),
        )
    except (KeyError, TypeError, yaml.YAMLError) as error:
        raise BadRun(f"no ScaledObject as `python -m load autoscale` writes them: {error}") from error


def _direction(document: Mapping[str, Any]) -> Direction:
    if document.get("selectPolicy", "Max") != "Max":
        raise BadRun(f"selectPolicy {document['selectPolicy']}: only Max is simulated")
    policies = tuple(Policy(each["type"], each["value"], each["periodSeconds"]) for each in document["policies"])
    return Direction(document["stabilizationWindowSeconds"], policies)


def _queries(documents: Sequence[Mapping[str, Any]]) -> tuple[Query, ...]:
    for each in documents:
        if each["type"] != "prometheus" or each.get("metricType", "AverageValue") != "AverageValue":
            raise BadRun(f"trigger {each.get('name')}: only prometheus with an AverageValue is simulated")
    # KEDA's own default of ignoreNullValues is true.
    return tuple(
        Query(
            name=each["name"],
            query=each["metadata"]["query"],
            threshold=float(each["metadata"]["threshold"]),
            ignores_nulls=each["metadata"].get("ignoreNullValues", "true") == "true",
        )
        for each in documents
    )
