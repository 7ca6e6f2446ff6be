"""An interpreter that the walker does not know."""

import hook

for report in (hook.walk(), hook.call(hook.lib.hook_walk_main)):
    assert report["frames"] == [] and not report["readable"], report
print(report["description"])
