"""The same pictures from MuJoCo's own OpenGL renderer, for machines that have one.

The scene is a small visual model of mocap bodies: no physics is involved, and one image is drawn at a time.
"""

from __future__ import annotations

import warnings
from typing import Any

import mujoco
import numpy as np
from jaxtyping import Float, UInt8
from numpy import ndarray

from ambs.envs.safety_gym import appearance as look
from ambs.errors import UserError

GL_HELP = (
    "renderer='mujoco' needs OpenGL, and none could be started here ({reason}): install libegl1 or libosmesa6 "
    "(apt-get install libegl1 libosmesa6) and set MUJOCO_GL=egl or MUJOCO_GL=osmesa before Python starts, "
    "or use the ray-caster, which needs no OpenGL."
)


class MujocoCamera:
    """`Camera` with MuJoCo's renderer behind it: same arguments, same picture, one image at a time.

    Models and GL contexts are made when first needed, one per number of hazards and vases and image size (the cost of a
    frame is mostly that of its buffer, so each size has its own); `close` frees them. Raises `UserError` where OpenGL
    does not start.
    """

    def __init__(self, robot: str, size: int = 64, palette: str = "safety_gymnasium") -> None:
        look.check(robot, size, palette)
        self.robot = robot
        self.size = size
        self.palette = palette
        self._scenes: dict[tuple[int, int, bool, int], tuple[Any, Any, Any]] = {}

    def render(
        self,
        robot_pos: Float[ndarray, "N 3"],
        robot_mat: Float[ndarray, "N 3 3"],
        goal: Float[ndarray, "N 2"] | None,
        hazards: Float[ndarray, "N H 2"],
        vase_pos: Float[ndarray, "N V 3"],
        vase_mat: Float[ndarray, "N V 3 3"],
    ) -> UInt8[ndarray, "N size size 3"]:
        """What the robot sees: N poses and layouts in metres, world frame -> `[N, size, size, 3]`."""
        return self._draw("vision", self.size, robot_pos, robot_mat, goal, hazards, vase_pos, vase_mat)

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
        self,
        camera: str,
        size: int,
        robot_pos: Any,
        robot_mat: Any,
        goal: Any,
        hazards: Any,
        vase_pos: Any,
        vase_mat: Any,
    ) -> UInt8[ndarray, "N size size 3"]:
        key = (hazards.shape[1], vase_pos.shape[1], goal is not None, size)
        if key not in self._scenes:
            model = mujoco.MjModel.from_xml_string(scene_xml(self.robot, self.palette, *key))
            self._scenes[key] = (model, mujoco.MjData(model), _renderer(model, size))
        model, data, renderer = self._scenes[key]
        option = mujoco.MjvOption()
        option.geomgroup[:] = 1
        images = np.empty((len(robot_pos), size, size, 3), np.uint8)
        for i, image in enumerate(images):
            _place(
                data,
                robot_pos[i],
                robot_mat[i],
                None if goal is None else goal[i],
                hazards[i],
                vase_pos[i],
                vase_mat[i],
            )
            mujoco.mj_kinematics(model, data)
            mujoco.mj_camlight(model, data)
            renderer.update_scene(data, camera=camera, scene_option=option)
            renderer.render(out=image)
        return images


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


def _place(data: Any, robot_pos: Any, robot_mat: Any, goal: Any, hazards: Any, vase_pos: Any, vase_mat: Any) -> None:
    """Write one layout into the mocap poses; bodies come in the order robot, vases, hazards, goal."""
    n_vases, n_hazards = len(vase_pos), len(hazards)
    data.mocap_pos[0] = robot_pos
    mujoco.mju_mat2Quat(data.mocap_quat[0], np.asarray(robot_mat, np.float64).ravel())
    for i in range(n_vases):
        data.mocap_pos[1 + i] = vase_pos[i]
        mujoco.mju_mat2Quat(data.mocap_quat[1 + i], np.asarray(vase_mat[i], np.float64).ravel())
    data.mocap_pos[1 + n_vases : 1 + n_vases + n_hazards, :2] = hazards
    if goal is not None:
        data.mocap_pos[1 + n_vases + n_hazards, :2] = goal


def scene_xml(robot: str, palette: str, hazards: int, vases: int, goal: bool, size: int) -> str:
    """MJCF of the visual scene: every object a mocap body, plus the cameras vision, back, chase and top_down."""
    colours = look.PALETTES[palette]
    flat = colours.sky[0] == colours.sky[1]
    sky = (
        f'<texture type="skybox" builtin="{"flat" if flat else "gradient"}" width="64" height="384"'
        f' rgb1="{_text(colours.sky[0])}" rgb2="{_text(colours.sky[1])}"/>'
    )
    bodies = "".join(
        f'<body mocap="true" pos="0 0 {z}"><geom type="{shape}" size="{size}" rgba="{_text(colour)} {alpha}"/></body>'
        for count, z, shape, size, colour, alpha in (
            (vases, look.VASE_HALF, "box", _text((look.VASE_HALF,) * 3), look.VASE_COLOUR, 1),
            (
                hazards,
                look.HAZARD_Z,
                "cylinder",
                f"{look.HAZARD_RADIUS} {look.HAZARD_HALF_HEIGHT}",
                look.HAZARD_COLOUR,
                look.ALPHA,
            ),
            (
                int(goal),
                look.GOAL_Z,
                "cylinder",
                f"{look.GOAL_RADIUS} {look.GOAL_HALF_HEIGHT}",
                look.GOAL_COLOUR,
                look.ALPHA,
            ),
        )
        for _ in range(count)
    )
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
