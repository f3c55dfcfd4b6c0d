"""The words of a command as flags with their values; preflight.py and engine_flags.py read a training's command with it."""


def settings_of(flags: list[str]) -> dict[str, list[str]]:
    """Flag -> its values; of a flag that is given twice, the later ones."""
    settings: dict[str, list[str]] = {}
    for word in flags:
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            settings[name] = values = [value] if equals else []
        elif settings:
            values.append(word)
    return settings


def value(settings: dict[str, list[str]], flag: str, default: str = "") -> str:
    return (settings.get(flag) or [default])[0]
