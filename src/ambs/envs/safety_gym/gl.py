"""The same pictures from MuJoCo's own OpenGL renderer, for machines that have one.

The scene is a small visual model of mocap bodies: no physics is involved, and one image is drawn at a time.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt8
from numpy import ndarray

from ambs.envs.safety_gym import appearance as look
from ambs.envs.safety_gym.objects import GOAL, HAZARD, VASE, Kind, Things, drawn
from ambs.errors import UserError, extras

with extras():
    import mujoco

GL_HELP = (
    "renderer='mujoco' needs OpenGL, and none could be started here ({reason}): install libegl1 or libosmesa6 "
    "(apt-get install libegl1 libosmesa6) and set MUJOCO_GL=egl or MUJOCO_GL=osmesa before Python starts, "
    "or use the ray-caster, which needs no OpenGL."
)


class MujocoCamera:
    """`Camera` with MuJoCo's renderer behind it: same arguments, same picture, one image at a time.

    Models and GL contexts are made when first needed, one per number of things and image size (the cost of a
    frame is mostly that of its buffer, so each size has its own); `close` frees them. Raises `UserError` where OpenGL
    does not start.
    """

    def __init__(
        self,
        robot: str,
        size: int = 64,
        palette: str = "safety_gymnasium",
        *,
        goal: Kind = GOAL,
        kinds: Sequence[Kind] = (HAZARD, VASE),
    ) -> None:
        look.check(robot, size, palette)
        self.robot = robot
        self.size = size
        self.palette = palette
        self.goal, self.kinds = goal, drawn(kinds)
        self._scenes: dict[tuple[Things, int], tuple[Any, Any, Any]] = {}

    def render(self, *scene: Any) -> UInt8[ndarray, "N size size 3"]:
        """What the robot sees; arguments as for `Camera.render`."""
        return self._draw("vision", self.size, *scene)

    def back(self, *scene: Any) -> UInt8[ndarray, "N size size 3"]:
        """What lies behind the robot: the view of its rear camera; arguments as for `render`."""
        return self._draw("back", self.size, *scene)

    def chase(self, *scene: Any, size: int = 256) -> UInt8[ndarray, "N size size 3"]:
        """The robot from behind and above; arguments as for `render`."""
        return self._draw("chase", size, *scene)

    def top_down(self, *scene: Any, size: int = 256) -> UInt8[ndarray, "N size size 3"]:
        """The whole floor from above, world x to the right and y up; arguments as for `render`."""
        return self._draw("top_down", size, *scene)

    def close(self) -> None:
        """Free the GL contexts."""
        for _, _, renderer in self._scenes.values():
            renderer.close()
        self._scenes.clear()

    def _draw(
        self, camera: str, size: int, robot_pos: Any, robot_mat: Any, goal: Any, *rest: Any
    ) -> UInt8[ndarray, "N size size 3"]:
        poses = self._poses(goal, *rest)
        key = tuple((kind, pos.shape[1]) for kind, pos, _ in poses), size
        if key not in self._scenes:
            model = mujoco.MjModel.from_xml_string(scene_xml(self.robot, self.palette, *key))
            self._scenes[key] = (model, mujoco.MjData(model), _renderer(model, size))
        model, data, renderer = self._scenes[key]
        option = mujoco.MjvOption()
        option.geomgroup[:] = 1
        images = np.empty((len(robot_pos), size, size, 3), np.uint8)
        for i, image in enumerate(images):
            _place(data, [(robot_pos[i : i + 1], robot_mat[i : i + 1]), *((pos[i], mat[i]) for _, pos, mat in poses)])
            mujoco.mj_kinematics(model, data)
            mujoco.mj_camlight(model, data)
            renderer.update_scene(data, camera=camera, scene_option=option)
            renderer.render(out=image)
        return images

    def _poses(self, goal: Any, discs: Any, cube_pos: Any, cube_mat: Any, *others: Any) -> list[tuple[Kind, Any, Any]]:
        """Kinds with centres `[N, things, 3]` and axes `[N, things, 3, 3]` of their things."""
        found = [] if self.kinds.cubes is None else [(self.kinds.cubes, cube_pos, cube_mat)]
        if self.kinds.discs is not None:
            found.append((self.kinds.discs, *_upright(discs, self.kinds.discs)))
        if goal is not None:
            found.append((self.goal, *_upright(goal[:, None], self.goal)))
        return found + list(zip(self.kinds.others, others[::2], others[1::2], strict=True))


def _upright(spots: Any, kind: Kind) -> tuple[Any, Any]:
    centres = np.concatenate([spots, np.full((*spots.shape[:2], 1), kind.height)], axis=-1)
    return centres, np.broadcast_to(np.eye(3), (*spots.shape[:2], 3, 3))


# Where OpenGL failed once it is not tried again: a second attempt can abort the whole process.
_failures: list[str] = []


def _renderer(model: Any, size: int) -> Any:
    if _failures:
        raise UserError(_failures[0])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return mujoco.Renderer(model, size, size)
    except Exception as error:  # whatever the GL loader throws: missing library, no display, no device
        reason = " ".join(str(error).split()) or type(error).__name__
        _failures.append(GL_HELP.format(reason=reason))
        raise UserError(_failures[0]) from error


def _place(data: Any, poses: Sequence[tuple[Any, Any]]) -> None:
    """Write centres `[things, 3]` and axes `[things, 3, 3]` into the mocap poses, in the order of the bodies."""
    index = 0
    for pos, mat in poses:
        for centre, axes in zip(pos, mat, strict=True):
            data.mocap_pos[index] = centre
            mujoco.mju_mat2Quat(data.mocap_quat[index], np.asarray(axes, np.float64).ravel())
            index += 1


def scene_xml(robot: str, palette: str, things: Things, size: int) -> str:
    """MJCF of the visual scene: every thing a mocap body after the robot, plus the cameras vision, back, chase and top_down."""
    colours = look.PALETTES[palette]
    flat = colours.sky[0] == colours.sky[1]
    sky = (
        f'<texture type="skybox" builtin="{"flat" if flat else "gradient"}" width="64" height="384"'
        f' rgb1="{_text(colours.sky[0])}" rgb2="{_text(colours.sky[1])}"/>'
    )
    bodies = "".join(f'<body mocap="true"><geom {kind.geom}/></body>' for kind, count in things for _ in range(count))
    parts = "".join(
        f'<geom type="{part.shape}" pos="{_text(part.pos)}" size="{_text(part.size)}"'
        f' rgba="{_text(colours.trim if part.trim else colours.body)} 1"'
        f' zaxis="{"1 0 0" if part.shape == "cylinder" else "0 0 1"}"/>'
        for part in look.PARTS[robot]
    )
    return f"""
<mujoco>
  <visual><map znear="0.01"/><global offwidth="{size}" offheight="{size}"/></visual>
  <statistic extent="{100 * look.ZNEAR}"/>
  <asset>
    {sky}
    <texture name="floor" type="2d" builtin="checker" width="100" height="100"
      rgb1="{_text(colours.floor[0])}" rgb2="{_text(colours.floor[1])}"/>
    <material name="floor" texture="floor" reflectance="{look.REFLECTANCE}" specular="{look.FLOOR_SPECULAR}"
      shininess="{look.FLOOR_SHININESS}" texrepeat="{look.FLOOR_HALF / look.TILE} {look.FLOOR_HALF / look.TILE}"/>
  </asset>
  <worldbody>
    <light pos="0 0 0.5" dir="0 0 -1" type="directional" diffuse="1 1 1" specular="0 0 0" castshadow="false"/>
    <geom type="plane" size="{look.FLOOR_HALF} {look.FLOOR_HALF} 0.1" material="floor"/>
    {_camera("top_down", look.TOP_DOWN)}
    <body mocap="true">{parts}{_camera("vision", look.VISION[robot])}{_camera("back", look.VISION_BACK[robot])}
      {_camera("chase", look.CHASE[robot])}</body>
    {bodies}
  </worldbody>
</mujoco>"""


def _camera(name: str, view: look.View) -> str:
    axes = f"{_text(view.right)} {_text(view.up)}"
    return f'<camera name="{name}" pos="{_text(view.pos)}" xyaxes="{axes}" fovy="{view.fovy}"/>'


def _text(values: tuple[float, ...]) -> str:
    return " ".join(map(str, values))
