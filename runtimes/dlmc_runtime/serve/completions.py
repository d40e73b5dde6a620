"""``/v1/completions``: texts continued."""

from fastapi import APIRouter

from dlmc_runtime.serve.strict import StrictRoute

router = APIRouter(route_class=StrictRoute, tags=["completions"])
