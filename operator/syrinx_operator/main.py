"""The operator as kopf handlers: `kopf run --standalone -m syrinx_operator.main -n NAMESPACE` (`-A`: all namespaces).

Watch events only enqueue a pipeline; `cluster.reconcile` reads its state from the cluster.
"""

import os

import kopf

from syrinx_operator.cluster.config import ConfigError, options
from syrinx_operator.cluster.kinds import PIPELINE, POD, WATCHED
from syrinx_operator.cluster.operator import Operator, connection
from syrinx_stages.contract import logs

try:
    logs.configure(os.environ)
    OPERATOR = Operator(options(os.environ))
except (ConfigError, ValueError) as error:
    raise SystemExit(f"syrinx-operator: {error}") from None

kopf.on.startup(errors=kopf.ErrorsMode.PERMANENT)(OPERATOR.start)
kopf.on.cleanup()(OPERATOR.stop)
kopf.on.login()(connection)
kopf.on.event(PIPELINE.api_version, PIPELINE.plural)(OPERATOR.pipeline_event)
for kind in (POD, *WATCHED):
    kopf.on.event(kind.api_version, kind.plural)(OPERATOR.child_event)
