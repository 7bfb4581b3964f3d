"""Two small lakes as records: one with its best plan, and a corridor without any."""

RECORD = {
    "id": "a",
    "map": ["F F F", "F H F", "F F F"],
    "starts": [[0, 0], [2, 2]],
    "goals": [[2, 0], [0, 1]],
}
PATHS = [[[0, 0], [1, 0], [2, 0]], [[2, 2], [1, 2], [0, 2], [0, 1]]]
CORRIDOR = {
    "id": "d",
    "map": ["F F F F", "H H H H", "H H H H", "H H H H"],
    "starts": [[0, 0], [0, 1]],
    "goals": [[0, 3], [0, 2]],
}
