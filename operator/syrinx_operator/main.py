"""The operator as kopf handlers: `kopf run --standalone -m syrinx_operator.main -n NAMESPACE` (`-A`: all namespaces).

kopf runs the process. The operator itself watches the cluster (`cluster.watch`), so that no error ends a watch.
"""

import os

import kopf

from syrinx_operator.cluster.config import ConfigError, options
from syrinx_operator.cluster.operator import Operator, scope
from syrinx_operator.cluster.watch.login import Login
from syrinx_stages.contract import logs

try:
    logs.configure(os.environ)
    OPTIONS = options(os.environ)
    OPERATOR = Operator(OPTIONS, scope())
except (ConfigError, ValueError) as error:
    raise SystemExit(f"syrinx-operator: {error}") from None

kopf.on.startup(errors=kopf.ErrorsMode.PERMANENT)(OPERATOR.start)
kopf.on.cleanup()(OPERATOR.stop)
kopf.on.login()(Login(OPTIONS.max_backoff_seconds).connect)
