"""Names of the cache's separate worlds: nothing is shared between two of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Namespace:
    """What must agree for KV to be interchangeable. Equal parts give equal names, different parts different ones."""

    model: str = ""
    """Name of the model."""
    weights: str = ""
    """Version of the weights, by content: an adapter or model reloaded under its old name is another one."""
    adapter: str = ""
    """Digest of the adapter, empty without."""
    salt: str = ""
    """Tenant. Tenants that must not learn from each other's hits get different salts."""

    def __str__(self) -> str:
        """The root's key. Each part is preceded by its length, so that no part can imitate another's end."""
        parts = (self.model, self.weights, self.adapter, self.salt)
        return "".join(f"{len(part)}:{part}" for part in parts)
