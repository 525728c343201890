"""A family of models as a package brings it: `<<do>>weather=>{"city": "Oslo"}<<done>>` calls, `<<muse>>` thinks."""

from dormouse_worker.front.answers.call_forms import CallForm
from dormouse_worker.front.answers.calls import NamedCalls
from dormouse_worker.front.answers.families import ReasoningFamily, ToolFamily

CALLS = ToolFamily(
    "arrows",
    (NamedCalls("<<do>>", "=>", closing="<<done>>"),),  # how calls are read
    strict=(CallForm("<<do>>", "", "=>", "<<done>>", quotes_name=False),),  # how a grammar writes them
    template=("<<do>>",),  # whose chat template has this in it is of this family
)
THOUGHTS = ReasoningFamily("muses", "<<muse>>", "<</muse>>", template=("<<muse>>",))
