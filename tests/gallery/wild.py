"""A real-world index: anchors, merges, metas whose builds inherit everything, one entry per hardware."""

HARDWARE = {
    "default": "cpu",
    "nvidia": "cuda12",
    "nvidia-cuda-12": "cuda12",
    "nvidia-cuda-13": "cuda13",
    "nvidia-l4t": "nvidia-l4t-arm64",
    "amd": "rocm",
    "intel": "intel-sycl-f16",
    "vulkan": "vulkan",
    "metal": "metal",
}
FLAVOURS = {"": "latest", "-development": "master"}


def backend(name: str) -> str:
    """Two metas (stable and development) and a build of each for every kind of hardware."""
    builds = sorted(set(HARDWARE.values()))
    return _meta(name) + "".join(_build(name, build, flavour) for flavour in FLAVOURS for build in builds)


def index(backends: int) -> str:
    return "---\n## metas\n" + "".join(backend(f"engine-{number}") for number in range(backends))


def _meta(name: str) -> str:
    return f"""- &{name.replace("-", "")}
  name: "{name}"
  alias: "{name}"
  license: mit
  icon: https://icons.invalid/{name}.png
  description: |
    Inference of {name} models: text, images: and "quotes".
  urls:
    - https://code.invalid/{name}
  tags:
    - text-to-text
    - LLM
    - CPU
  capabilities:
{_capabilities(name, "")}- !!merge <<: *{name.replace("-", "")}
  name: "{name}-development"
  capabilities:
{_capabilities(name, "-development")}"""


def _capabilities(name: str, flavour: str) -> str:
    return "".join(f'    {key}: "{build}-{name}{flavour}"\n' for key, build in HARDWARE.items())


def _build(name: str, build: str, flavour: str) -> str:
    tag = f"{FLAVOURS[flavour]}-{'' if build == 'cpu' else 'gpu-'}{build}-{name}"
    return f"""- !!merge <<: *{name.replace("-", "")}
  name: "{build}-{name}{flavour}"
  uri: "registry.invalid/forge/backends:{tag}"
  mirrors:
    - mirror.invalid/forge/backends:{tag}
"""
