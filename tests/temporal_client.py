"""Connection settings for the Temporal server of a home, isolated or not."""

from nodesmith.runtime.settings import ControlSettings
from nodesmith.stack.certificates import Certificates
from nodesmith.stack.home import Connection


def temporal_settings(connection: Connection) -> ControlSettings:
    settings = ControlSettings(temporal_address=connection.temporal_address)
    if connection.temporal_certificates is None:
        return settings
    tls = Certificates(connection.temporal_certificates)
    files = {"temporal_ca_file": tls.ca, "temporal_cert_file": tls.client, "temporal_key_file": tls.client_key}
    return settings.model_copy(update=files)
