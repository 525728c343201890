"""The Grafana dashboards as data: pages of panels, each a question and the query that answers it."""

from tools.dashboards.deployment import DEPLOYMENT_BOARD
from tools.dashboards.fleet import FLEET
from tools.dashboards.machinery import MACHINERY
from tools.dashboards.model import Dashboard, Panel, to_grafana
from tools.dashboards.sleeping import SLEEPING

DASHBOARDS = (FLEET, DEPLOYMENT_BOARD, SLEEPING, MACHINERY)

__all__ = ["DASHBOARDS", "Dashboard", "Panel", "to_grafana"]
