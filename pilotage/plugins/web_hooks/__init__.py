"""Web hooks: addresses of VOs that get signed messages when jobs end, or pools and sites are closed."""

from pilotage.extensions import CommandGroup, Plugin, PluginAgent

PLUGIN = Plugin(
    package=__name__,
    commands={
        "hook": CommandGroup(
            "Make, list, test and remove web hooks: a VO is notified when its jobs end.",
            {
                "add": "commands:add",
                "list": "commands:list_hooks",
                "show": "commands:show",
                "test": "commands:send_test",
                "remove": "commands:remove",
            },
            package=__name__,
        )
    },
    settings="settings:HookSettings",
    agents={"web-hooks": PluginAgent(every=5.0, open="agent:open_agent")},
    log_readers={"web hooks": "agent:collect"},
    routers=("routes:router",),
    tags={"web hooks": "For VO admins: addresses that are notified of events."},
    not_found={"hook_id": "hook_not_found"},
    pages=("pages:router",),
)
